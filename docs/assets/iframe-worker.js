// Browsers start no workers for pages that are opened from a folder. The search then runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.inside = frame.contentWindow
      this.loaded = new Promise(resolve => {
        const inner = this.inside.document
        inner.open()
        inner.write("<!doctype html><html><body></body></html>")
        inner.close()
        // What the search answers comes out as this worker's message.
        this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
        const script = inner.createElement("script")
        script.src = new URL(url, location)
        script.onload = resolve
        inner.body.appendChild(script)
      })
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
}
