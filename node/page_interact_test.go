package node

import (
	"encoding/json"
	"testing"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// Time from an interaction to the frame that shows what it did, in ms: the
// median of seven. "nothing" is an interaction that does nothing, in the same
// run: what the browser and the machine take by themselves.
const interactions = `(async () => {
	const shown = () => new Promise(done => requestAnimationFrame(() => {
		const after = new MessageChannel();
		after.port1.onmessage = done;
		after.port2.postMessage(0);
	}));
	const key = (target, key) => target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
	const type = (box, text) => { box.value = text; box.dispatchEvent(new Event("input")); };
	const box = map.canvas.getBoundingClientRect();
	const acts = {
		nothing: () => {},
		"a move over the page map": i => map.canvas.dispatchEvent(new MouseEvent("mousemove", { clientX: box.left + 40 * i + 3, clientY: box.top + 20 * i + 3 })),
		"an arrow on the page map": () => key(map.canvas, "ArrowDown"),
		"a filter of the rooms": i => type($("roomfilter"), "req-" + i),
		"the filter taken away": () => type($("roomfilter"), ""),
		"a scroll through the rooms": i => { list.box.scrollTop = 20000 * i; list.box.dispatchEvent(new Event("scroll")); },
		"an arrow on the rooms": () => key(list.box, "ArrowDown"),
		"a room opened": () => key(list.box, "Enter"),
		"the room closed": () => key(document, "Escape"),
		"light to dark": () => $("theme").click(),
		"every page redrawn": () => map.layout(),
		"500 rooms that change": i => take({ rooms: [...model.rooms.values()].slice(500 * i, 500 * i + 500) }),
	};
	const out = {};
	for (const [name, act] of Object.entries(acts)) {
		const took = [];
		for (let i = 0; i < 7; i++) {
			await shown();
			const began = performance.now();
			act(i);
			await shown();
			took.push(performance.now() - began);
		}
		out[name] = took.sort((a, b) => a - b)[3];
	}
	hideRoom();
	$("theme").click();
	delete document.documentElement.dataset.theme;
	map.layout();
	return JSON.stringify(out);
})()`

// The bound: 100 ms an interaction at 100,000 pages. The time of a frame
// in which nothing happens is the machine's and is taken off.
func measureInteractions(t *testing.T, b tab) {
	t.Helper()
	const bound = 100
	var text string
	b.do(chromedp.Evaluate(interactions, &text, func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
		return p.WithAwaitPromise(true)
	}))
	ms := map[string]float64{}
	if err := json.Unmarshal([]byte(text), &ms); err != nil {
		t.Fatal(err)
	}
	if len(ms) != 12 {
		t.Fatalf("%d interactions: %s", len(ms), text)
	}
	for name, took := range ms {
		if full() && took-ms["nothing"] > bound {
			t.Errorf("%s took %.0f ms, a frame in which nothing happens %.0f ms", name, took, ms["nothing"])
		}
	}
	t.Logf("ms to the frame that shows it: %s", text)
}
