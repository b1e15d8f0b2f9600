"""What is wrong with a page for somebody who can't see it well, or at all, or has no mouse: found in its real, computed state.

Contrast is WCAG 2.2's (1.4.3 and 1.4.11), of the colours that the browser ended up with. Each function returns the faults in words.
"""

from typing import Any

_CONTRAST = """() => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (text) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = text;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
        return [r, g, b, a / 255];
    };
    const over = (top, below, opacity = 1) => {
        const a = top[3] * opacity;
        return [0, 1, 2].map((i) => top[i] * a + below[i] * (1 - a)).concat(1);
    };
    const ancestors = (node) => { const all = []; for (let one = node; one; one = one.parentElement) all.unshift(one); return all; };
    const behind = (node) => ancestors(node).reduce((below, one) => {
        const style = getComputedStyle(one);
        return over(rgba(style.backgroundColor), below);
    }, [255, 255, 255, 1]);
    const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
        .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
        .reduce((sum, one, i) => sum + one * [0.2126, 0.7152, 0.0722][i], 0);
    const ratio = (one, other) => {
        const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
        return (bright + 0.05) / (dark + 0.05);
    };
    const isShown = (node) => node.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && node.getClientRects().length > 0;
    const faults = [];
    let numChecked = 0;
    const check = (node, foreground, background, least, what) => {
        numChecked += 1;
        const found = ratio(foreground, background);
        const where = `${node.tagName}#${node.id}.${node.getAttribute("class") ?? ""}`;
        if (found < least) faults.push(`${what} ${where}: ${found.toFixed(2)} < ${least}`);
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode()) {
        const node = text.parentElement;
        if (!text.data.trim() || !isShown(node) || node.closest(":disabled, noscript, .unseen, caption, .skip")) continue;
        const style = getComputedStyle(node);
        const isSvg = node instanceof SVGElement;
        const opacity = ancestors(node).reduce((product, one) => product * Number(getComputedStyle(one).opacity), 1);
        const size = parseFloat(style.fontSize);
        const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
        const background = behind(node);
        const colour = over(rgba(isSvg ? style.fill : style.color), background, opacity);
        check(node, colour, background, isLarge ? 3 : 4.5, `text "${text.data.trim().slice(0, 30)}"`);
    }
    for (const node of document.querySelectorAll("input, select")) {
        if (!isShown(node)) continue;
        check(node, rgba(getComputedStyle(node).borderTopColor), behind(node.parentElement), 3, "edge");
        if (!node.placeholder) continue;
        check(node, rgba(getComputedStyle(node, "::placeholder").color), behind(node), 4.5, "placeholder");
    }
    return [numChecked, faults];
}"""

_STRUCTURE = """() => {
    const faults = [];
    const shown = (selector) => [...document.querySelectorAll(selector)].filter((one) => one.checkVisibility());
    const text = (id) => document.getElementById(id)?.textContent.trim();
    const named = (node) => (node.getAttribute("aria-label") ?? "").trim()
        || (node.getAttribute("aria-labelledby") ?? "").split(" ").map(text).join(" ").trim()
        || [...(node.labels ?? [])].map((label) => label.textContent).join(" ").trim()
        || (["BUTTON", "A", "SUMMARY"].includes(node.tagName) ? node.textContent.trim() : "");
    const controls = "input, select, button, a[href], summary";
    const parts = "[role=img], [role=progressbar], [role=region], nav, form[role=search]";
    for (const node of shown(`${controls}, ${parts}`)) {
        if (!node.closest("[aria-hidden=true]") && !named(node)) faults.push(`no name: ${node.outerHTML.slice(0, 120)}`);
    }
    for (const node of document.querySelectorAll("img:not([alt])")) faults.push(`no alt: ${node.outerHTML.slice(0, 120)}`);
    for (const node of document.querySelectorAll("table")) {
        if (!node.querySelector("caption")?.textContent.trim()) faults.push(`no caption: ${node.outerHTML.slice(0, 120)}`);
        if (!node.querySelector("th[scope]") && node.rows.length) faults.push(`no headers: ${node.outerHTML.slice(0, 120)}`);
    }
    for (const [selector, count] of [["h1", 1], ["main", 1], ["header", 1], ["footer", 1]]) {
        if (shown(selector).length !== count) faults.push(`${shown(selector).length} of ${selector}`);
    }
    let level = 0;
    for (const node of shown("h1, h2, h3, h4, h5, h6")) {
        const next = Number(node.tagName[1]);
        if (next > level + 1) faults.push(`a heading of level ${next} after one of level ${level}: ${node.textContent}`);
        level = next;
    }
    for (const node of shown("main > section")) {
        if (!text(node.getAttribute("aria-labelledby"))) faults.push(`a part without a name: ${node.id}`);
    }
    const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
    for (const id of new Set(ids.filter((one, at) => ids.indexOf(one) !== at))) faults.push(`two of #${id}`);
    for (const label of document.querySelectorAll("label[for]")) {
        if (!document.getElementById(label.htmlFor)) faults.push(`a label of nothing: ${label.htmlFor}`);
    }
    if (!document.documentElement.lang) faults.push("no language");
    return faults;
}"""

_FOCUSED = """() => {
    const node = document.activeElement;
    if (!node || node === document.body) return null;
    const style = getComputedStyle(node);
    const [box, outline] = [node.getBoundingClientRect(), parseFloat(style.outlineWidth)];
    return {
        name: node.id || node.getAttribute("aria-label") || node.textContent.trim().slice(0, 40) || node.tagName,
        isMarked: style.outlineStyle !== "none" && outline >= 2,
        isSeen: box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth,
    };
}"""


def contrast_faults(page: Any) -> list[str]:
    """Return what is too faint to read, of the text that is shown."""
    num_checked, faults = page.evaluate(_CONTRAST)
    assert num_checked > 50, "the page shows hardly anything"
    return list(faults)


def structure_faults(page: Any) -> list[str]:
    """Return what has no name, no label, no caption, or a heading that skips a level."""
    return list(page.evaluate(_STRUCTURE))


def keyboard_faults(page: Any, presses: int) -> tuple[list[str], list[str]]:
    """Press Tab so many times; return what had the focus, in order, and what was wrong: no mark of the focus, or out of sight."""
    order, faults = [], []
    for _ in range(presses):
        page.keyboard.press("Tab")
        found = page.evaluate(_FOCUSED)
        if found is None:
            continue  # the browser's own controls, at the end of the page
        order.append(found["name"])
        if not found["isMarked"]:
            faults.append(f"{found['name']}: nothing shows that it has the focus")
        if not found["isSeen"]:
            faults.append(f"{found['name']}: it has the focus out of sight")
    return order, faults
