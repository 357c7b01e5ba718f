// A run's result at a glance. Texts are untrusted: they are set by textContent alone.
export default function (component) {
  const { data, parentElement, setTriggerValue } = component;
  const root = parentElement.querySelector(".overview");
  const shown = JSON.stringify(data);
  if (root.dataset.shown === shown) return;
  root.dataset.shown = shown;
  root.dataset.theme = data.dark ? "dark" : "light";
  root.replaceChildren();
  const words = add(root, "div", "words", "");
  const head = add(words, "div", "head", "");
  add(head, "h2", "run", data.run);
  add(head, "span", "state", data.state).dataset.state = data.state;
  const score = add(words, "div", "score", data.title);
  if (data.gain) add(score, "span", "gain", "from " + data.gain);
  add(words, "div", "claim", data.claim);
  const facts = add(words, "dl", "facts", "");
  for (const [name, value] of data.facts) {
    const fact = add(facts, "div", name === "best model" ? "wide" : "", "");
    add(fact, "dt", "", name);
    add(fact, "dd", "", value);
  }
  draw(add(root, "div", "chart", ""), data);
  const links = add(root, "nav", "links", "");
  for (const [page, title, what] of data.links) {
    const link = add(links, "button", "link", "");
    link.onclick = () => setTriggerValue("picked", page);
    add(link, "strong", "", title);
    add(link, "span", "", what);
  }
}

const WIDTH = 640, HEIGHT = 330, LEFT = 44, RIGHT = 16, TOP = 26, BOTTOM = 30;

function draw(parent, data) {
  const svg = drawing("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": data.summary });
  parent.append(svg);
  const put = (tag, values, text) => svg.append(drawing(tag, values, text));
  const ys = [...data.points.flatMap(([, y, e]) => [y - e, y + e]), ...data.rewards.map((point) => point[1])];
  const step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1].find((size) => (Math.max(...ys) - Math.min(...ys)) / size <= 6)
    || Math.max((Math.max(...ys) - Math.min(...ys)) / 5, 1e-9);
  const low = Math.floor(Math.min(...ys) / step + 1e-9) * step, high = Math.max(Math.ceil(Math.max(...ys) / step - 1e-9) * step, low + step);
  const last = Math.max(1, ...data.points.map((point) => point[0]), ...data.rewards.map((point) => point[0]));
  const x = (value) => LEFT + (value / last) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const path = (points) => points.map((point, place) => `${place ? "L" : "M"}${x(point[0])} ${y(point[1])}`).join("");
  const number = (value) => data.percent ? Math.round(value * 100) + "%" : String(+value.toPrecision(3));
  for (let value = low; value <= high + step / 2; value += step) {
    put("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) });
    put("text", { class: "tick", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, number(value));
  }
  const each = Math.max(1, Math.ceil(last / 4));
  for (let value = 0; value <= last - each * 0.6; value += each) {
    put("text", { class: "tick", x: x(value), y: HEIGHT - 8, "text-anchor": "middle" }, String(value));
  }
  put("text", { class: "tick", x: x(last), y: HEIGHT - 8, "text-anchor": "end" }, "step " + last);
  if (data.rewards.length > 1) put("path", { class: "rewards", d: path(data.rewards) });
  const floor = `L${x(data.points[data.points.length - 1][0])} ${y(low)}L${x(data.points[0][0])} ${y(low)}Z`;
  put("path", { class: "area", d: path(data.points) + floor });
  put("path", { class: "line", d: path(data.points) });
  for (const [version, mean, error] of data.points) {
    put("line", { class: "error", x1: x(version), x2: x(version), y1: y(mean - error), y2: y(mean + error) });
    put("circle", { class: version === data.best ? "dot best" : "dot", cx: x(version), cy: y(mean), r: version === data.best ? 7 : 4 });
  }
  const [version, mean] = data.points.find((point) => point[0] === data.best);
  const anchor = x(version) > WIDTH * 0.8 ? "end" : x(version) < WIDTH * 0.2 ? "start" : "middle";
  put("text", { class: "label", x: x(version), y: y(mean) - 14, "text-anchor": anchor }, `best: version ${version}`);
  put("text", { class: "key", x: LEFT, y: 14 }, data.key);
}
