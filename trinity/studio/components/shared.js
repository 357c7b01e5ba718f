// Stands before each component. Texts are untrusted: they are set by textContent alone.
const SURPRISE = { light: ["#ffffff", "#cfeae4", "#8ccfc2", "#3aa796"], dark: ["#14171c", "#0f3a34", "#115a4f", "#19796d"] };
const PALETTES = {
  surprise: SURPRISE,
  age: { light: ["#ffffff", "#e6ddf4", "#cdbbe8", "#b297dc", "#9874cd"], dark: ["#14171c", "#2f2648", "#45336b", "#5c4492", "#7656b6"] },
  signed: {
    light: ["#5aa2de", "#9cc7ec", "#d3e6f7", "#ffffff", "#fde3c3", "#f9be7c", "#e8923a"],
    dark: ["#2a6fae", "#215c91", "#173d60", "#14171c", "#4f340e", "#744a12", "#955f12"],
  },
};
const INK = { light: "#1a1a1a", dark: "#f2f4f7" };

function paint(cell, theme, palette, level) {
  if (level === null) return;
  cell.style.background = PALETTES[palette][theme][level];
  cell.style.color = INK[theme];
}

function add(parent, tag, name, text) {
  const made = document.createElement(tag);
  made.className = name;
  if (text) made.textContent = text;
  parent.append(made);
  return made;
}

function drawing(tag, settings, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in settings) made.setAttribute(name, settings[name]);
  if (text) made.textContent = text;
  return made;
}

function tell(list, facts) {
  list.replaceChildren();
  for (const [name, value] of facts) {
    add(list, "dt", "", name);
    add(list, "dd", "", value);
  }
}
