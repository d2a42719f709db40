// The theme takes the mermaid that is there, and fetches one from another host if there is none. This one stands in for
// it: mermaid itself, which is large, is loaded beside this file once a page has a diagram.
(() => {
  const source = new URL("mermaid.tiny.js", document.currentScript.src);
  let settings;
  let loading;

  function load() {
    loading ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = source;
      script.onload = () => {
        globalThis.mermaid.initialize(settings);
        resolve(globalThis.mermaid);
      };
      script.onerror = reject;
      document.head.append(script);
    });
    return loading;
  }

  globalThis.mermaid = {
    initialize: (given) => { settings = given; },
    render: async (...of) => (await load()).render(...of),
  };
})();
