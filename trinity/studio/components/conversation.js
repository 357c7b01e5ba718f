// Messages of a run by their roles. Texts are untrusted: they are set by textContent alone. Long ones
// are folded, and opened by a click, Enter or the space bar, as the browser does it.
export default function (component) {
  const { data, parentElement } = component;
  const root = parentElement.querySelector(".conversation");
  const shown = JSON.stringify(data);
  if (root.dataset.shown === shown) return;  // what a reader has opened stays open
  root.dataset.shown = shown;
  root.dataset.theme = data.dark ? "dark" : "light";
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", data.name);
  root.replaceChildren();
  for (const turn of data.turns) {
    const part = add(root, "section", "turn", "");
    add(part, "div", "head", turn.head);
    if (turn.note) add(part, "div", "note", turn.note);
    for (const message of turn.messages) {
      const row = add(part, "div", "message", "");
      row.dataset.role = message.role;
      const side = add(row, "div", "side", "");
      add(side, "div", "role", message.role);
      add(side, "div", "tokens", message.tokens);
      const said = add(row, "div", "said", "");
      for (const image of message.images) {
        if (image.url) Object.assign(add(said, "img", "image", ""), { src: image.url, alt: image.label, title: image.label });
        else add(said, "div", "note", image.label);
      }
      if (!message.folded) {
        add(said, "pre", "text", message.text);
        continue;
      }
      const folded = add(said, "details", "text", "");
      add(folded, "summary", "preview", message.preview);
      add(folded, "pre", "whole", message.text);
    }
  }
}
