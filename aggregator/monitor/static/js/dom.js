/** Building the page's nodes. Text is only ever inserted as text: nothing that a stranger wrote becomes markup. */

const SVG = "http://www.w3.org/2000/svg";

/** Return the element that the page was made with. */
export function byId(id) {
  return document.getElementById(id);
}

/** Return a new element; attributes whose value is null or false are left out, `on` holds listeners by event. */
export function h(tag, attributes = {}, ...children) {
  return furnished(document.createElement(tag), attributes, children);
}

/** Return a new SVG element, otherwise as `h`. */
export function s(tag, attributes = {}, ...children) {
  return furnished(document.createElementNS(SVG, tag), attributes, children);
}

/** Replace what a node holds. */
export function fill(node, ...children) {
  node.replaceChildren(...present(children));
}

/** Set a node's text if it is another: a screen reader tells only what changed. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Return a table row of cells; the first is the row's header. Cells are nodes or text. */
export function row(first, ...cells) {
  return h("tr", {}, h("th", { scope: "row" }, first), ...cells.map((cell) => h("td", {}, cell)));
}

function furnished(node, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  for (const [event, listener] of Object.entries(on)) node.addEventListener(event, listener);
  node.append(...present(children));
  return node;
}

/** Return the children that are there, lists of them unfolded: what a condition left out is null or false. */
function present(children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false);
}
