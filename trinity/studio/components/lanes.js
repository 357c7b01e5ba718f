// Lanes of members over time. Texts are untrusted: they are set by textContent alone. One tab stop:
// left and right move along a lane, up and down between lanes, Home and End to its ends.
export default function (component) {
  const { data, parentElement } = component;
  const root = parentElement.querySelector(".lanes");
  const rows = parentElement.querySelector(".rows");
  const facts = parentElement.querySelector(".facts");
  const active = root.getRootNode().activeElement;
  const hadFocus = active !== null && rows.contains(active);
  const current = rows.dataset.current;
  root.dataset.theme = data.dark ? "dark" : "light";
  rows.setAttribute("aria-label", data.name);
  rows.replaceChildren();
  if (!data.lanes.length) {
    facts.replaceChildren();
    add(rows, "p", "empty", data.empty);
    return;
  }
  const lanes = data.lanes.map((lane) => {
    const row = add(rows, "div", "lane", "");
    row.setAttribute("role", "row");
    add(row, "div", "name", lane.name).setAttribute("role", "rowheader");
    const track = add(row, "div", "track", "");
    return lane.spans.map((span) => {
      const cell = add(track, "div", span.wait ? "span wait" : "span work", span.width > 3.5 ? span.label : "");
      cell.setAttribute("aria-label", span.label);
      cell.setAttribute("role", "gridcell");
      cell.style.left = span.left + "%";
      cell.style.width = span.width + "%";
      cell.tabIndex = -1;
      return { cell, span };
    });
  });
  const axis = add(rows, "div", "axis", "");
  add(axis, "span", "start", data.start);
  add(axis, "span", "end", data.end);
  const all = lanes.flat();
  const select = (chosen) => {
    for (const one of all) one.cell.tabIndex = one === chosen ? 0 : -1;
    rows.dataset.current = chosen.span.id;
    tell(facts, chosen.span.facts);
  };
  lanes.forEach((lane, place) => {
    lane.forEach((one, position) => {
      one.cell.onmouseenter = () => tell(facts, one.span.facts);
      one.cell.onfocus = () => select(one);
      one.cell.onclick = () => one.cell.focus();
      one.cell.onkeydown = (event) => {
        const other = lanes[event.key === "ArrowDown" ? place + 1 : place - 1] || lane;
        const nearest = () => other.reduce(
          (best, next) => Math.abs(next.span.left - one.span.left) < Math.abs(best.span.left - one.span.left) ? next : best,
        );
        const moves = {
          ArrowRight: () => lane[Math.min(position + 1, lane.length - 1)],
          ArrowLeft: () => lane[Math.max(position - 1, 0)],
          Home: () => lane[0], End: () => lane[lane.length - 1],
          ArrowDown: nearest, ArrowUp: nearest,
        };
        if (!(event.key in moves)) return;
        moves[event.key]().cell.focus();
        event.preventDefault();
        event.stopPropagation();
      };
    });
  });
  const first = all.find((one) => one.span.id === current) || all[all.length - 1];
  select(first);
  if (hadFocus) first.cell.focus();
}
