// Shows the key of this page with each websocket; see gate.py. It comes once, behind the # of the address.
(() => {
  const name = "trinity-page-key";
  const sent = /^#key=([0-9a-f]{64})$/.exec(location.hash);
  if (sent) {
    localStorage.setItem(name, sent[1]);
    history.replaceState(null, "", location.pathname + location.search);
  }
  const key = localStorage.getItem(name);
  if (!key) {
    location.replace("/sign-in");
    return;
  }
  window.WebSocket = class extends WebSocket {
    constructor(address, protocols = []) {
      super(address, [protocols, "trinity." + key].flat());
    }
  };
})();
