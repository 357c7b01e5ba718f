// A table whose cells are text alone. One tab stop: arrows, Home and End move, Enter picks a row.
export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".table");
  const focused = root.dataset.current;
  // A page that looks again every few seconds must not take a row away between press and release.
  const shown = JSON.stringify(data);
  if (root.dataset.shown === shown) return;
  root.dataset.shown = shown;
  root.dataset.theme = data.dark ? "dark" : "light";
  root.replaceChildren();
  if (!data.rows.length) {
    add(root, "p", "empty", data.empty);
    return;
  }
  const table = document.createElement("table");
  table.setAttribute("aria-label", data.name);
  const head = table.createTHead().insertRow();
  for (const column of data.columns) {
    add(head, "th", column.kind, column.label).scope = "col";
  }
  const body = table.createTBody();
  const rows = data.rows.map((row) => {
    const line = body.insertRow();
    line.dataset.id = row.id;
    line.className = row.id === data.selected ? "row selected" : "row";
    if (row.id === data.selected) line.setAttribute("aria-current", "true");
    row.cells.forEach((text, place) => {
      const cell = line.insertCell();
      const column = data.columns[place];
      cell.className = column.kind;
      if (column.kind === "state") cell.dataset.state = text;
      paint(cell, root.dataset.theme, "surprise", row.levels[place]);
      if (column.kind === "spark" && text) drawSpark(cell, text);
      else if (column.kind === "tree") drawTree(cell, text);
      else setText(cell, text);
      cell.title = text.length > 40 ? text : "";
    });
    return line;
  });
  root.append(table);
  if (!data.selectable) {
    root.tabIndex = 0;
    root.setAttribute("role", "region");
    root.setAttribute("aria-label", data.name);
    return;
  }
  const pick = (line) => setTriggerValue("picked", line.dataset.id);
  const focus = (place) => {
    const next = rows[Math.max(0, Math.min(place, rows.length - 1))];
    for (const line of rows) line.tabIndex = line === next ? 0 : -1;
    root.dataset.current = next.dataset.id;
    next.focus();
  };
  const first = Math.max(0, rows.findIndex((line) => line.dataset.id === (focused || data.selected)));
  rows.forEach((line, place) => {
    line.classList.add("choice");
    line.tabIndex = place === first ? 0 : -1;
    line.onclick = () => pick(line);
    line.onkeydown = (event) => {
      const moves = {
        ArrowDown: place + 1, ArrowUp: place - 1, PageDown: place + 10, PageUp: place - 10,
        Home: 0, End: rows.length - 1,
      };
      if (event.key in moves) {
        focus(moves[event.key]);
      } else if (event.key === "Enter" || event.key === " ") {
        pick(line);
      } else {
        return;
      }
      event.preventDefault();
      event.stopPropagation();
    };
  });
}

// Sets what stands in backquotes as code.
function setText(cell, text) {
  text.split(/`([^`]+)`/).forEach((part, place) => {
    add(cell, place % 2 ? "code" : "span", "", part);
  });
}

// Draws the lines of a tree that stand before a name, every other character of them in a column.
function drawTree(cell, text) {
  const [lines, name] = text.split(/ (?=\S+$)/);
  const columns = [...lines].filter((_, place) => place % 2 === 0);
  const svg = drawing("svg", { viewBox: `0 0 ${16 * columns.length} 32`, width: 16 * columns.length, height: 32 });
  columns.forEach((line, place) => {
    const x = 16 * place + 8;
    if ("│├╵".includes(line)) svg.append(drawing("path", { d: `M${x} 0V16` }));
    if ("│├╷┐".includes(line)) svg.append(drawing("path", { d: `M${x} 16V32` }));
    if (line === "├") svg.append(drawing("path", { d: `M${x} 16H${x + 16}` }));
  });
  svg.append(drawing("circle", { cx: 16 * columns.length - 8, cy: 16, r: 4 }));
  cell.append(svg);
  add(cell, "span", "", name);
}

function drawSpark(cell, text) {
  const values = text.split(" ").map(Number);
  const low = Math.min(...values), size = Math.max(...values) - low || 1;
  const svg = drawing("svg", { viewBox: "0 0 96 24", role: "img", "aria-label": text });
  const points = values.map((value, place) => [3 + (90 * place) / Math.max(values.length - 1, 1), 21 - (18 * (value - low)) / size]);
  svg.append(drawing("polyline", { points: points.join(" ") }));
  const [x, y] = points[values.indexOf(Math.max(...values))];
  svg.append(drawing("circle", { cx: x, cy: y, r: 2.5 }));
  cell.append(svg);
}
