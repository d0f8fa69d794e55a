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
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
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
	for seed := range uint64(400) {
		fuzz.try(t, seed, nil)
	}
	t.Log(fuzz)
	if fuzz.accepted < 1000 || fuzz.refused < 1000 || fuzz.appended < 50 || fuzz.normed < 50 {
		t.Errorf("%v: that tests little", fuzz)
	}
}

func FuzzAnyCall(f *testing.F) {
	f.Add(uint64(1), []byte{})
	f.Add(uint64(2), []byte("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b"))
	f.Fuzz(func(t *testing.T, seed uint64, data []byte) { newFuzzer(t).try(t, seed, data) })
}

// fuzzer keeps what lives longer than a call.
type fuzzer struct {
	contexts          []*rope.Context
	pool              *rope.Pool
	backends          map[string]int
	accepted, refused int
	appended, normed  int // of the accepted
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
	return &fuzzer{pool: pool, backends: map[string]int{}}
}

func (f *fuzzer) String() string {
	return fmt.Sprintf("%d calls accepted, %d of them of Append, %d with norms, %d refused, contexts on %v", f.accepted,
		f.appended, f.normed, f.refused, f.backends)
}

// foreign is what Go's messages must not have: names of C, and addresses.
var foreign = regexp.MustCompile(`->|\(0x[0-9a-f]{4,}|\brope_[a-z]+_|\bROPE_`)

// judge counts a call and checks its error and its memory.
func (f *fuzzer) judge(t *testing.T, err error, memory ...guarded) {
	t.Helper()
	var e *rope.Error
	switch {
	case err == nil:
		f.accepted++
	case errors.Is(err, rope.ErrClosed):
		f.refused++
	case !errors.As(err, &e) || e.Status >= 0 || e.Status == rope.ErrInternal || len(e.Message) < 12:
		t.Fatalf("a strange error: %#v", err)
	default:
		f.refused++
		ofText := strings.HasPrefix(e.Message, "rope.FromJSON: ") // names keys of the text
		if foreign.MatchString(e.Message) && !ofText {
			t.Fatalf("a message in C's words: %s", e.Message)
		}
	}
	for n, m := range memory {
		if at, found := m.differs(err == nil); found {
			t.Fatalf("argument %d: element %d has changed; the call returned %v", n, at, err)
		}
	}
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
		for range 6 {
			switch s.below(12) {
			case 0:
				call[float32, float32](f, t, s, c)
			case 1:
				call[rope.Float16, rope.Float16](f, t, s, c)
			case 2:
				call[rope.BFloat16, rope.BFloat16](f, t, s, c)
			case 3:
				call[float32, rope.BFloat16](f, t, s, c)
			case 4:
				call[rope.Float16, float32](f, t, s, c)
			case 5:
				short[float32](f, t, s, c)
			case 6:
				short[rope.BFloat16](f, t, s, c)
			case 7:
				fill[float32](f, t, s, c)
			case 8:
				appendCall[float32, float32, float32](f, t, s, c)
			case 9:
				appendCall[float32, rope.BFloat16, rope.BFloat16](f, t, s, c)
			case 10:
				appendCall[rope.Float16, rope.Float16, float32](f, t, s, c)
			default:
				fill[rope.Float16](f, t, s, c)
			}
			if s.oneIn(40) {
				c.Close()
			}
		}
	}
	if s.oneIn(200) {
		runtime.GC()
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
	c, err := rope.New(cfg)
	if f.judge(t, err); err == nil {
		f.keep(c)
	}
}

func (f *fuzzer) model(t *testing.T, s *source) {
	json := s.json()
	text := fence(s, len(json), func() int32 { return 0 }) // as int32: the type does not matter here
	for i, b := range json {
		text.inside[i] = int32(b)
	}
	model, err := rope.FromJSON(json)
	f.judge(t, err)
	for i, b := range json {
		if text.inside[i] != int32(b) {
			t.Fatal("FromJSON has changed its text")
		}
	}
	if err != nil {
		return
	}
	defer model.Close()
	if len(model.LayerTypes()) == 0 {
		t.Fatal("no layer type")
	}
	kind, err := model.LayerType(s.number(s.below(3)))
	if f.judge(t, err); err == nil && kind >= len(model.LayerTypes()) {
		t.Fatal("kind", kind)
	}
	_, err = model.Config(s.number(s.below(3)))
	f.judge(t, err)
	contexts, err := model.Contexts(int64(s.number(s.below(5000))))
	if f.judge(t, err); err == nil {
		f.keep(contexts[0])
	}
}

func (f *fuzzer) promptIDs(t *testing.T, s *source) {
	runs := s.runs()
	size := int64(0)
	for _, r := range runs {
		if r.T > 0 && r.H > 0 && r.W > 0 {
			size += int64(r.T) * int64(r.H) * int64(r.W)
		}
		size = max(size, r.Text)
	}
	if size > 1<<18 && size < 1<<28 {
		return // allowed, and slow
	}
	ids, _, err := rope.PromptIDs(runs, s.position())
	if f.judge(t, err); err == nil && len(ids)%3 != 0 {
		t.Fatal(len(ids))
	}
}

func (f *fuzzer) ask(t *testing.T, s *source, c *rope.Context) {
	set := s.number(s.below(2))
	info, err := c.Info(set)
	f.judge(t, err)
	frequencies, err2 := c.InvFreq(set)
	if f.judge(t, err2); err == nil && (err2 != nil || len(frequencies) != info.Pairs || info.ValidBelow < 1 || info.ValidFrom > info.ValidBelow) {
		t.Fatal(info, len(frequencies), err2)
	}
}
