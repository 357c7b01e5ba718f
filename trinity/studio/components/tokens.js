// The tokens of a response, each with its values. Texts are untrusted: they are set by textContent alone.
export default function (component) {
  const { data, parentElement } = component;
  const strip = parentElement.querySelector(".strip");
  const facts = parentElement.querySelector(".facts");
  const root = parentElement.querySelector(".tokens");
  root.dataset.theme = data.dark ? "dark" : "light";
  strip.setAttribute("aria-label", data.name);
  strip.replaceChildren();
  facts.replaceChildren();
  let pinned = -1;
  const show = (place) => tell(facts, data.tokens[place].facts);
  const cells = data.tokens.map((token, place) => {
    if (token.label) add(strip, "span", "label", token.label);
    const cell = add(strip, "span", "token" + (token.mask ? "" : " masked") + (token.part ? " part" : ""), token.text);
    paint(cell, root.dataset.theme, data.palette, token.level);
    if (token.clipped) cell.classList.add("clipped");
    cell.setAttribute("role", "option");
    cell.setAttribute("aria-selected", "false");
    cell.tabIndex = place === 0 ? 0 : -1;
    if (token.breaks) strip.append(document.createElement("br"));
    return cell;
  });
  const select = (place) => {
    cells.forEach((cell, other) => {
      cell.tabIndex = other === place ? 0 : -1;
      cell.setAttribute("aria-selected", other === place ? "true" : "false");
    });
    show(place);
  };
  cells.forEach((cell, place) => {
    cell.onmouseenter = () => { if (pinned < 0) show(place); };
    cell.onfocus = () => { if (pinned < 0) select(place); };
    cell.onclick = () => { pinned = pinned === place ? -1 : place; select(place); };
    cell.onkeydown = (event) => {
      const moves = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: cells.length - 1 };
      if (event.key in moves) {
        const next = Math.max(0, Math.min(moves[event.key], cells.length - 1));
        pinned = -1;
        cells[next].focus();
      } else if (event.key === "Enter") {
        pinned = place;
        select(place);
      } else if (event.key === "Escape") {
        pinned = -1;
      } else {
        return;
      }
      event.preventDefault();
      event.stopPropagation();
    };
  });
  if (cells.length) show(0);
}
