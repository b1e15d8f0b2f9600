/** Numbers as people read them. What is not known is a dash. */

const NOT_KNOWN = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

function known(format) {
  return (value, ...more) => (value === null || value === undefined || Number.isNaN(value) ? NOT_KNOWN : format(value, ...more));
}

export const count = known((value) => whole.format(value));
export const compact = known((value) => (Math.abs(value) < 1e6 ? whole.format(value) : short.format(value)));
export const percent = known((share, digits = 1) => `${(100 * share).toFixed(digits)} %`);

/** Return "1 computer", "3 computers". */
export const counted = known((value, one, many = `${one}s`) => `${whole.format(value)} ${value === 1 ? one : many}`);

/** Return bytes with a decimal unit. */
export const bytes = known((value) => {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  const step = value < 1000 ? 0 : Math.min(Math.floor(Math.log10(value) / 3), units.length - 1);
  return step ? `${(value / 1000 ** step).toPrecision(3)} ${units[step]}` : `${Math.round(value)} B`;
});

/** Return a duration of milliseconds exactly enough for a span of a round. */
export const duration = known((ms) => {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  return roughly(ms);
});

/** Return milliseconds without their unit, exactly enough for what a network takes. */
export const milliseconds = known((ms) => (ms < 10 ? String(Number(ms.toPrecision(2))) : whole.format(ms)));

/** Return a duration of milliseconds in words: about how long something still takes. */
export const roughly = known((ms) => {
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) return counted(seconds, "second");
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return counted(minutes, "minute");
  const hours = Math.round(minutes / 60);
  return hours < 48 ? counted(hours, "hour") : counted(Math.round(hours / 24), "day");
});

/** Return [how often, in what time] something happens that takes so many milliseconds; null: not known. */
export function pace(ms) {
  if (ms === null || ms <= 0) return [NOT_KNOWN, "a minute"];
  const [each, unit] = [
    [60000, "a minute"],
    [3600000, "an hour"],
  ].find(([one]) => one / ms >= 1) ?? [86400000, "a day"];
  const rate = each / ms;
  return [rate < 10 ? rate.toFixed(1) : whole.format(rate), unit];
}

/** Return the time of day of milliseconds since 1970. */
export const clock = known((ms) => new Date(ms).toLocaleTimeString("en-GB"));

/** Return a long name so that it fits: its beginning is the same for all peers, its end tells them apart. */
export function shortName(peer) {
  return peer.length > 8 ? `…${peer.slice(-8)}` : peer;
}

/** Return the beginning of a digest in hexadecimal. */
export function shortHash(hash) {
  return hash.length > 16 ? `${hash.slice(0, 12)}…` : hash;
}

/** Return how good something is in the run's metric, as text. */
export function quality(metric) {
  return metric.name === "accuracy" ? (value) => percent(value) : known((value) => `${value.toFixed(2)} ${metric.unit}`);
}
