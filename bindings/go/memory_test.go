//go:build linux && !race

package rope

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// resident is how many bytes of the process are in main memory.
func resident(t *testing.T) int {
	for range 3 { // cleanups of forgotten handles run on a goroutine after the collection
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// A leak of four bytes per call would show.
func TestAMillionCallsLeakNothing(t *testing.T) {
	const allowed = 4 << 20
	c := mustNew(t, plain(64))
	q := make([]float32, 64)
	ids := []int64{1, 2}
	json := []byte(`{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1,
		"num_hidden_layers": 2, "rope_theta": 10000.0}`)
	forgotten := 0
	tests := []struct {
		name  string
		calls int
		call  func()
	}{
		{"ApplyTHD", 1000000, func() {
			if err := ApplyTHD(c, ids[:1], q, 1, nil, 0); err != nil {
				t.Fatal(err)
			}
		}},
		{"ApplyQK", 1000000, func() {
			step := Step{Batch: 1, Tokens: 1, Positions: TokenIDs(ids[:1])}
			if err := ApplyQK(c, BSHD(q, 1), Tensor[float32]{}, step); err != nil {
				t.Fatal(err)
			}
		}},
		{"errors", 1000000, func() {
			if ApplyQK(c, BSHD(q, 1), BSHD(q, 1), Step{Batch: 1, Tokens: 1, Positions: Offset(1)}) == nil {
				t.Fatal("an overlap was accepted")
			}
		}},
		{"closed handles", 20000, func() {
			model, err := FromJSON(json)
			if err != nil {
				t.Fatal(err)
			}
			contexts, err := model.Contexts()
			if err != nil {
				t.Fatal(err)
			}
			contexts[0].Close()
			model.Close()
		}},
		{"forgotten handles", 20000, func() {
			// The collector does not see how much C memory a handle holds.
			if forgotten++; forgotten%500 == 0 {
				runtime.GC()
			}
			if _, err := New(plain(64)); err != nil {
				t.Fatal(err)
			}
			if _, err := FromJSON(json); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, test := range tests {
		for range test.calls / 10 {
			test.call()
		}
		before := resident(t)
		for range test.calls {
			test.call()
		}
		if grown := resident(t) - before; grown > allowed {
			t.Errorf("%s: %d bytes more after %d calls", test.name, grown, test.calls)
		}
	}
}
