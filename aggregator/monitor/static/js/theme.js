// Light or dark as the visitor chose it last, before anything is painted; otherwise as the system says. Not a module: it must not wait.
(() => {
  try {
    const chosen = localStorage.getItem("manta.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // a browser may keep nothing
  }
})();
