package rope_test

// The fuzzer of the safe API: any call, right or wrong, writes inside its slices only, what it is meant
// to, and nothing at all if it is refused; no call ends the process. The sanitizers see the rest:
//
//	LIBROPE_FUZZ_SECONDS=1800 go test -asan -run TestAnyCall -v -timeout 0 .
//
// with PKG_CONFIG_PATH and LD_LIBRARY_PATH at a librope of the preset asan-ubsan. The last result is in
// testdata/fuzz-result.txt. FuzzAnyCall is the same for go test -fuzz, which looks for new paths through
// this package (it does not see those of C).

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rope "github.com/librope/librope/bindings/go"
)

func TestAnyCall(t *testing.T) {
	fuzz := newFuzzer(t)
	if text := os.Getenv("LIBROPE_FUZZ_SECONDS"); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for seed := uint64(start.UnixNano()); time.Since(start) < time.Duration(seconds)*time.Second; seed++ {
			fuzz.try(t, seed, nil)
		}
		t.Logf("%.0f s on %s/%s, %s, librope %s: %v", time.Since(start).Seconds(), runtime.GOOS, runtime.GOARCH,
			runtime.Version(), rope.LibraryVersion(), fuzz)
		return
	}
	for seed := range uint64(900) {
		fuzz.try(t, seed, nil)
	}
	t.Log(fuzz)
	if fuzz.accepted < 2000 || fuzz.refused < 2000 {
		t.Errorf("%v: that tests little", fuzz)
	}
	for _, kind := range kinds {
		if n := fuzz.kinds[kind]; n.accepted < 20 || n.refused < 20 {
			t.Errorf("%s: %v: that tests little", kind, n)
		}
	}
}

func FuzzAnyCall(f *testing.F) {
	f.Add(uint64(1), []byte{})
	f.Add(uint64(2), []byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b"))
	f.Fuzz(func(t *testing.T, seed uint64, data []byte) { newFuzzer(t).try(t, seed, data) })
}

// kinds are those of which there must be enough calls, right and wrong.
var kinds = []string{"Prepared", "Append", "PreparedAppend", "Apply", "PreparedCall", "MoveSlots", "MoveBetween", "ShardIDs",
	"LatentIDs", "GGUF values", "norms", "norms of v", "gradients of norms", "norms of a PreparedCall", "repeated heads",
	"scales of outputs", "rows of cos and sin", "rows of heads", "repeated batch rows", "shards", "positions before"}

// kindsOf are those of a call with this step, by what it has.
func kindsOf(step rope.Step) (kinds []string) {
	norms, rows := step.Norms, step.CosSin
	for _, kind := range []struct {
		name string
		is   bool
	}{
		{"norms", norms != nil && (norms.Q != nil || norms.K != nil || norms.V != nil)},
		{"norms of v", norms != nil && norms.V != nil},
		{"gradients of norms", norms != nil && step.Operation == rope.OperationBackward},
		{"rows of cos and sin", rows != nil},
		{"rows of heads", rows != nil && rows.Heads != 0},
		{"repeated batch rows", step.BatchRepeat > 1},
		{"shards", step.Shard != rope.Shard{}},
		{"positions before", step.From != nil},
	} {
		if kind.is {
			kinds = append(kinds, kind.name)
		}
	}
	return kinds
}

// calls counts some.
type calls struct{ accepted, refused int }

// fuzzer keeps what lives longer than a call.
type fuzzer struct {
	contexts []*rope.Context
	pool     *rope.Pool
	backends map[string]int
	calls
	kinds map[string]calls
}

func newFuzzer(t *testing.T) *fuzzer {
	pool, err := rope.NewPool(2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close() })
	target, set := os.LookupEnv("LIBROPE_CPU_TARGET")
	t.Cleanup(func() {
		if set {
			os.Setenv("LIBROPE_CPU_TARGET", target)
		} else {
			os.Unsetenv("LIBROPE_CPU_TARGET")
		}
	})
	return &fuzzer{pool: pool, backends: map[string]int{}, kinds: map[string]calls{}}
}

func (f *fuzzer) String() string {
	text := fmt.Sprintf("%d calls accepted, %d refused, contexts on %v", f.accepted, f.refused, f.backends)
	for _, kind := range kinds {
		text += fmt.Sprintf("\n%s: %d accepted, %d refused", kind, f.kinds[kind].accepted, f.kinds[kind].refused)
	}
	return text
}

// count counts a call of these kinds.
func (f *fuzzer) count(err error, kinds ...string) {
	for _, kind := range kinds {
		n := f.kinds[kind]
		n.add(err)
		f.kinds[kind] = n
	}
}

func (n *calls) add(err error) {
	if err == nil {
		n.accepted++
	} else {
		n.refused++
	}
}

var (
	// foreign is what Go's messages must not have: names of C, with their underscores or without, and addresses.
	foreign = regexp.MustCompile(`->|\(0x[0-9a-f]{4,}|\bROPE_|ROPE[A-Z]|\b[a-z]+_[a-z]|\b[A-Z]{4,}\b`)
	// notNames are words that only look like them: what was given, dimensions, a key, devices and targets.
	notNames = regexp.MustCompile(`"[^"]*"|\b(head_dim|page_size|max_resolution|CUDA|SCALAR|NEON)\b`)
	// camelCase are names, which must be those of this package.
	camelCase = regexp.MustCompile(`\b_?[A-Za-z]*[a-z][A-Z]\w*`)
)

//go:embed *.go
var files embed.FS

// goNames are the words of this package. Those of messages.go are C's, too.
var goNames = sync.OnceValue(func() map[string]bool {
	words := map[string]bool{}
	entries, _ := files.ReadDir(".")
	for _, entry := range entries {
		if name := entry.Name(); name != "messages.go" && !strings.HasSuffix(name, "_test.go") {
			text, _ := files.ReadFile(name)
			for _, word := range regexp.MustCompile(`\w+`).FindAllString(string(text), -1) {
				words[word] = true
			}
		}
	}
	return words
})

// foreignIn is a word of a message that is not in Go's words, or "".
func foreignIn(message string) string {
	if word := foreign.FindString(notNames.ReplaceAllString(message, "")); word != "" {
		return word
	}
	for _, word := range camelCase.FindAllString(message, -1) {
		if !goNames()[word] {
			return word
		}
	}
	return ""
}

// judge counts a call and checks its error and its memory.
func (f *fuzzer) judge(t *testing.T, err error, memory ...guarded) {
	t.Helper()
	f.add(err)
	var e *rope.Error
	switch {
	case err == nil || errors.Is(err, rope.ErrClosed):
	case !errors.As(err, &e) || e.Status >= 0 || e.Status == rope.ErrInternal || len(e.Message) < 12:
		t.Fatalf("a strange error: %#v", err)
	default:
		ofText := strings.HasPrefix(e.Message, "rope.From") // names keys of the text
		if word := foreignIn(e.Message); word != "" && !ofText {
			t.Fatalf("a message in C's words (%s): %s", word, e.Message)
		}
	}
	for n, m := range memory {
		if at, found := m.differs(err == nil); found {
			t.Fatalf("argument %d: element %d has changed; the call returned %v", n, at, err)
		}
	}
}

// anyCalls are the calls with a context.
var anyCalls = []func(*fuzzer, *testing.T, *source, *rope.Context){
	call[float32, float32], call[rope.Float16, rope.Float16], call[rope.BFloat16, rope.BFloat16],
	call[float32, rope.BFloat16], call[rope.Float16, float32],
	appendCall[float32, float32, float32], appendCall[float32, rope.BFloat16, rope.BFloat16],
	appendCall[rope.Float16, rope.Float16, float32],
	fused[float32, float32, float32], fused[rope.BFloat16, float32, rope.F8E4M3], fused[float32, rope.F8E5M2, int8],
	fused[rope.Float16, rope.Float16, rope.Q80], fused[rope.BFloat16, int8, rope.BFloat16], fused[float32, rope.Q80, rope.F8E5M2],
	moveCall[float32, rope.BFloat16, float32, rope.BFloat16], moveCall[int8, rope.F8E4M3, int8, rope.F8E4M3],
	moveCall[rope.BFloat16, float32, rope.Q80, rope.F8E5M2], moveCall[rope.Q80, rope.Q80, rope.Float16, rope.Q80],
	short[float32], short[rope.BFloat16], fill[float32], fill[rope.Float16], shards,
}

// try makes things and calls with them, all from one seed.
func (f *fuzzer) try(t *testing.T, seed uint64, data []byte) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d, data %q", seed, data)
		}
	}()
	s := newSource(seed, data)
	f.contexts = f.contexts[:0]
	os.Setenv("LIBROPE_CPU_TARGET", "")
	if s.oneIn(3) {
		os.Setenv("LIBROPE_CPU_TARGET", pick(s, "SCALAR", "EMU128", "SSE2", "SSSE3", "SSE4", "AVX2", "AVX3", "NEON",
			"nonsense"))
	}
	for range 1 + s.below(6) {
		switch s.below(6) {
		case 0:
			f.model(t, s)
		case 1:
			f.promptIDs(t, s)
		default:
			f.context(t, s)
		}
	}
	for _, c := range f.contexts {
		f.ask(t, s, c)
		for range 8 {
			pick(s, anyCalls...)(f, t, s, c)
			if s.oneIn(100) {
				c.Close()
			}
		}
	}
	if s.oneIn(200) {
		runtime.GC()
	}
}

// accept counts a call that was prepared, and closes it or its context now and then.
func (f *fuzzer) accept(t *testing.T, s *source, c *rope.Context, closeCall func() error) {
	t.Helper()
	f.judge(t, nil)
	if s.oneIn(20) {
		c.Close()
	}
	if s.oneIn(60) {
		closeCall()
	}
}

func (f *fuzzer) keep(c *rope.Context) {
	f.backends[c.Backend()]++
	f.contexts = append(f.contexts, c)
}

func (f *fuzzer) context(t *testing.T, s *source) {
	cfg := s.config()
	if s.oneIn(5) {
		cfgs := make([]rope.Config, max(0, min(300, s.number(1+s.below(3)))))
		for i := range cfgs {
			cfgs[i] = cfg
			cfgs[i].Theta = float64(10000 + i)
			if s.oneIn(9) {
				s.spoil(&cfgs[i])
			}
		}
		c, err := rope.NewSets(cfgs)
		if f.judge(t, err); err == nil {
			f.keep(c)
		}
		return
	}
	_, err := cfg.NextChange(s.position())
	f.judge(t, err)
	if s.oneIn(4) { // it is slow
		_, err = cfg.Digest(rope.Digest(s.number(1 + s.below(3))))
		f.judge(t, err)
	}
	c, err := rope.New(cfg)
	if f.judge(t, err); err == nil {
		f.keep(c)
	}
}
