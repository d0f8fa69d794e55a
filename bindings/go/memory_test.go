//go:build linux && !race && !asan

package rope

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"
)

// resident is how many bytes of the process are in main memory.
func resident(t *testing.T) int {
	for range 3 { // cleanups of handles handles run on a goroutine after the collection
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

// What a call may leave behind: less than any leak, more than the memory that the C library keeps for
// itself, which of forgotten handles is that of all between two collections.
func TestAMillionCallsLeakNothing(t *testing.T) {
	c := mustNew(t, plain(64))
	q := make([]float32, 64)
	ids := []int64{1, 2}
	keys, slots := make([]float32, 64), MappedSlots([]int32{0})
	prepared := mustPrepare(t, c, BSHD[float32](nil, 1), Tensor[float32]{}, Step{Batch: 1, Tokens: 1, Positions: Offset(1)})
	stored := mustPrepareAppend(t, c, Tensor[float32]{}, BSHD[float32](nil, 1), Tensor[float32]{},
		KVCache[float32, float32]{K: NHD[float32](nil, 1), Pages: 1, PageSize: 1},
		Step{Batch: 1, Tokens: 1, Positions: Offset(1), Slots: slots})
	json := []byte(`{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1,
		"num_hidden_layers": 2, "rope_theta": 10000.0}`)
	handles := 0
	// The collector frees them, and does not see how much C memory they hold.
	collect := func() {
		if handles++; handles%500 == 0 {
			runtime.GC()
		}
	}
	tests := []struct {
		name  string
		calls int
		bytes int // of each call
		call  func()
	}{
		{"ApplyTHD", 1000000, 4, func() {
			if err := ApplyTHD(c, ids[:1], q, 1, nil, 0); err != nil {
				t.Fatal(err)
			}
		}},
		{"ApplyQK", 1000000, 4, func() {
			step := Step{Batch: 1, Tokens: 1, Positions: TokenIDs(ids[:1])}
			if err := ApplyQK(c, BSHD(q, 1), Tensor[float32]{}, step); err != nil {
				t.Fatal(err)
			}
		}},
		{"Append", 1000000, 4, func() {
			step := Step{Batch: 1, Tokens: 1, Positions: TokenIDs(ids[:1]), Slots: slots}
			cache := KVCache[float32, float32]{K: NHD(keys, 1), Pages: 1, PageSize: 1}
			if err := Append(c, Tensor[float32]{}, BSHD(q, 1), Tensor[float32]{}, cache, step); err != nil {
				t.Fatal(err)
			}
		}},
		{"errors", 1000000, 4, func() {
			if ApplyQK(c, BSHD(q, 1), BSHD(q, 1), Step{Batch: 1, Tokens: 1, Positions: Offset(1)}) == nil {
				t.Fatal("an overlap was accepted")
			}
		}},
		{"Prepared.Apply", 1000000, 4, func() {
			if err := prepared.Apply(q, nil); err != nil {
				t.Fatal(err)
			}
		}},
		{"PreparedAppend.Apply", 1000000, 4, func() {
			if err := stored.Apply(nil, q, nil, keys, nil); err != nil {
				t.Fatal(err)
			}
		}},
		{"closed prepared calls", 20000, 200, func() {
			p, err := Prepare(c, BSHD[float32](nil, 1), Tensor[float32]{}, Step{Batch: 1, Tokens: 1, Positions: Offset(1)})
			if err != nil {
				t.Fatal(err)
			}
			p.Close()
		}},
		{"closed handles", 20000, 200, func() {
			model, err := FromJSON(json)
			if err != nil {
				t.Fatal(err)
			}
			contexts, err := model.Contexts(0)
			if err != nil {
				t.Fatal(err)
			}
			contexts[0].Close()
			model.Close()
		}},
		{"forgotten handles", 100000, 160, func() {
			collect()
			if _, err := New(plain(64)); err != nil {
				t.Fatal(err)
			}
			if _, err := FromJSON(json); err != nil {
				t.Fatal(err)
			}
			_, err := Prepare(c, BSHD[float32](nil, 1), Tensor[float32]{}, Step{Batch: 1, Tokens: 1, Positions: Offset(1)})
			if err != nil {
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
		if grown := resident(t) - before; grown > test.calls*test.bytes {
			t.Errorf("%s: %d bytes more after %d calls", test.name, grown, test.calls)
		}
	}
}

// Close gives C memory back without the garbage collector, which sees none of it: a program with much
// memory in Go would collect only when the closed contexts hold as much in C.
func TestCloseFreesAtOnce(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	table := make([]float64, 512)
	for i := range table {
		table[i] = 1 + float64(i)
	}
	cfg := Config{HeadDim: 1024, Theta: 10000, Pairing: PairingHalves, Scaling: ScalingLongRope, ShortFactor: table,
		LongFactor: table, OriginalMaxPositionEmbeddings: 4096, MaxPositionEmbeddings: 131072, SeqLen: 1}
	json := []byte(`{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1,
		"num_hidden_layers": 2000, "rope_theta": 10000.0}`)
	// What is resident beside Go's own memory.
	outside := func() int {
		text, err := os.ReadFile("/proc/self/statm")
		if err != nil {
			t.Fatal(err)
		}
		var size, pages int
		if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
			t.Fatal(err)
		}
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return pages*os.Getpagesize() - int(stats.Sys-stats.HeapReleased)
	}
	makeAndClose := func(n int) {
		for range n {
			c, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			model, err := FromJSON(json)
			if err != nil {
				t.Fatal(err)
			}
			p, err := Prepare(c, BSHD[float32](nil, 1), Tensor[float32]{}, Step{Batch: 1, Tokens: 4, Positions: Offset(0)})
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			model.Close()
			p.Close()
		}
	}
	makeAndClose(200)
	before := outside()
	makeAndClose(4000)
	if grown := outside() - before; grown > 8<<20 {
		t.Errorf("%d bytes more of C after 4000 contexts, models and prepared calls were closed", grown)
	}
}

// Ids that memory does not hold are an error, and not the end of the process: here of a child with
// 3 GiB of addresses.
func TestPromptIDsWithLittleMemory(t *testing.T) {
	const variable = "LIBROPE_TEST_LITTLE_MEMORY"
	if os.Getenv(variable) != "" {
		limit := syscall.Rlimit{Cur: 3 << 30, Max: 3 << 30}
		if err := syscall.Setrlimit(syscall.RLIMIT_AS, &limit); err != nil {
			t.Fatal(err)
		}
		for _, text := range []int64{1 << 21, 1 << 27} {
			ids, _, err := PromptIDs([]PromptPart{{Text: text}}, 0)
			if !errors.Is(err, ErrOutOfMemory) && (err != nil || int64(len(ids)) != 3*text || text == 1<<27) {
				t.Error(text, len(ids), err)
			}
		}
		return
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(program, "-test.run=^TestPromptIDsWithLittleMemory$")
	child.Env = append(os.Environ(), variable+"=1")
	if output, err := child.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
