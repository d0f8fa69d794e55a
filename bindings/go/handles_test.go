package rope

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Hot reload: a context is replaced and closed while eight goroutines call with it. A call turns
// everything, or nothing and says ErrClosed.
func TestCloseBesideCalls(t *testing.T) {
	const dim = 64
	r := rand.New(rand.NewPCG(11, 12))
	x := random[float32](r, 4*dim)
	ids := []int64{3, 1, 4, 1}
	want := slices.Clone(x)
	if err := ApplyTHD(mustNew(t, plain(dim)), ids, want, 1, nil, 0); err != nil {
		t.Fatal(err)
	}
	var current atomic.Pointer[Context]
	current.Store(mustNew(t, plain(dim)))
	var done atomic.Bool
	var turned, closed atomic.Int64
	var wait sync.WaitGroup
	for range 8 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			got := make([]float32, len(x))
			for !done.Load() {
				copy(got, x)
				c := current.Load()
				runtime.Gosched() // here the context may be closed, or during the call
				err := ApplyTHD(c, ids, got, 1, nil, 0)
				switch {
				case err == nil && slices.Equal(got, want):
					turned.Add(1)
				case errors.Is(err, ErrClosed) && slices.Equal(got, x):
					closed.Add(1)
				default:
					t.Error("another result beside Close:", err)
					return
				}
				if _, err := c.InvFreq(0); err != nil && !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
			}
		}()
	}
	for n := 0; n < 2000 || turned.Load() == 0 || closed.Load() == 0; n++ {
		c, err := New(plain(dim))
		if err != nil {
			t.Fatal(err)
		}
		current.Swap(c).Close()
		if n%50 == 0 {
			runtime.GC()
		}
		runtime.Gosched()
		if t.Failed() {
			break
		}
	}
	done.Store(true)
	wait.Wait()
}

func TestModelCloseBesideCalls(t *testing.T) {
	json := []byte(`{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1,
		"num_hidden_layers": 2, "rope_theta": 10000.0}`)
	for n := range 200 {
		model, err := FromJSON(json)
		if err != nil {
			t.Fatal(err)
		}
		var wait sync.WaitGroup
		for range 4 {
			wait.Add(1)
			go func() {
				defer wait.Done()
				for range 5 {
					cfg, err := model.Config(0)
					if err == nil && cfg.HeadDim != 64 || err != nil && !errors.Is(err, ErrClosed) {
						t.Error(cfg, err)
					}
					runtime.Gosched()
				}
			}()
		}
		model.Close()
		if n%20 == 0 {
			runtime.GC()
		}
		wait.Wait()
		if model.LayerTypes() != nil {
			t.Error("a closed model has no layer types")
		}
	}
}

// Close of a pool waits for the calls that run in it, and those that come later are refused.
func TestPoolCloseBesideCalls(t *testing.T) {
	c := mustNew(t, plain(64))
	r := rand.New(rand.NewPCG(13, 14))
	x := random[float32](r, 1400*8*64) // long enough for the pool
	want := slices.Clone(x)
	step := Step{Batch: 1, Tokens: 1400, Positions: Offset(7)}
	if err := ApplyQK(c, BSHD(want, 8), Tensor[float32]{}, step); err != nil {
		t.Fatal(err)
	}
	var turned, closed atomic.Int64
	for range 20 {
		pool, err := NewPool(2)
		if err != nil {
			t.Fatal(err)
		}
		var wait sync.WaitGroup
		started := make(chan struct{}, 8)
		for range 8 {
			wait.Add(1)
			go func() {
				defer wait.Done()
				step := step
				step.Pool = pool
				got := make([]float32, len(x))
				for n := range 5 {
					copy(got, x)
					err := ApplyQK(c, BSHD(got, 8), Tensor[float32]{}, step)
					if n == 0 {
						started <- struct{}{}
					}
					switch {
					case err == nil && slices.Equal(got, want):
						turned.Add(1)
					case errors.Is(err, ErrClosed) && slices.Equal(got, x):
						closed.Add(1)
					default:
						t.Error("another result beside Close:", err)
						return
					}
				}
			}()
		}
		<-started
		pool.Close()
		step := step
		step.Pool = pool
		if err := ApplyQK(c, BSHD(slices.Clone(x), 8), Tensor[float32]{}, step); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		wait.Wait()
	}
	if turned.Load() == 0 || closed.Load() == 0 {
		t.Errorf("%d calls turned, %d were refused: nothing ran beside Close", turned.Load(), closed.Load())
	}
}

// copyOf copies a handle as go vet forbids.
func copyOf[T any](handle *T) *T {
	other := new(T)
	reflect.ValueOf(other).Elem().Set(reflect.ValueOf(handle).Elem())
	return other
}

// A handle that was copied in spite of go vet is freed once.
func TestCopiedHandles(t *testing.T) {
	q := make([]float32, 64)
	c, err := New(plain(64))
	if err != nil {
		t.Fatal(err)
	}
	model, err := FromJSON([]byte(`{"rope_type": "default", "rope_theta": 10000.0}`))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := NewPool(2)
	if err != nil {
		t.Fatal(err)
	}
	c2, model2, pool2 := copyOf(c), copyOf(model), copyOf(pool)
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Pool: pool2}
	if err := ApplyQK(c2, BSHD(q, 1), Tensor[float32]{}, step); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c2.Close()
		c.Close()
		model2.Close()
		model.Close()
		pool2.Close()
		pool.Close()
		runtime.GC()
	}
	if err := ApplyTHD(c, []int64{1}, q, 1, nil, 0); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := model.Config(0); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := ApplyQK(mustNew(t, plain(64)), BSHD(q, 1), Tensor[float32]{}, step); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// A prepared call has the pool that its step named, whatever the variable holds later.
func TestPreparedCallsKeepThePoolOfTheirStep(t *testing.T) {
	c, x := mustNew(t, plain(64)), make([]float32, 64)
	var pools [2]*Pool
	for i := range pools {
		pool, err := NewPool(2)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		pools[i] = pool
	}
	engine, head := copyOf(pools[0]), BSHD[float32](nil, 1)
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Pool: engine}
	prepared := mustPrepare(t, c, head, Tensor[float32]{}, step)
	call, err := PrepareCall(c, Call{Q: head.Any()}, step)
	if err != nil {
		t.Fatal(err)
	}
	defer call.Close()
	reflect.ValueOf(engine).Elem().Set(reflect.ValueOf(pools[1]).Elem())
	for _, open := range []bool{true, false} {
		if !open {
			pools[0].Close()
		}
		for _, err := range []error{prepared.Apply(x, nil), call.Apply(Layer{Q: ArrayOf(x)})} {
			if open && err != nil || !open && !errors.Is(err, ErrClosed) {
				t.Errorf("open %v: %v", open, err)
			}
		}
	}
}

// The errors of closed handles name the function and what is closed.
func TestClosedHandlesAreNamed(t *testing.T) {
	var model *Model
	var prepared *Prepared[float32, float32]
	var appended *PreparedAppend[float32, float32, float32]
	var call *PreparedCall
	none, x := Tensor[float32]{}, []float32{1}
	open := mustNew(t, plain(64))
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0)}
	pooled := step
	pooled.Pool = new(Pool)
	slotted := pooled
	slotted.Slots = MappedSlots([]int32{0})
	memory := make([]float32, 64)
	cache := KVCache[float32, float32]{K: NHD(memory, 1), Pages: 1, PageSize: 1}
	moved := slotted
	moved.Operation = OperationShift
	moved.Positions = Same(1)
	_, info := (*Context)(nil).Info(0)
	_, invFreq := (*Context)(nil).InvFreq(0)
	_, config := model.Config(0)
	_, layer := model.LayerType(0)
	_, contexts := model.Contexts(1)
	_, digest := model.Digest(0, DigestRotation)
	_, notes := model.Notes()
	_, ids := model.LatentIDs(0, Latents{})
	_, prepare := Prepare(open, BSHD[float32](nil, 1), none, pooled)
	_, prepareCall := PrepareCall(open, Call{Q: BSHD[float32](nil, 1).Any()}, pooled)
	for want, err := range map[string]error{
		"ApplyQK: the Context c":                    ApplyQK(nil, none, none, step),
		"ApplyTHD: the Context c":                   ApplyTHD(nil, []int64{1}, x, 1, nil, 0),
		"FillCosSin: the Context c":                 FillCosSin(nil, step, Packed(x)),
		"Append: the Context c":                     Append(nil, none, none, none, cache, slotted),
		"MoveSlots: the Context c":                  MoveSlots(nil, cache, moved),
		"Info: the Context c":                       info,
		"InvFreq: the Context c":                    invFreq,
		"Config: the Model m":                       config,
		"LayerType: the Model m":                    layer,
		"Contexts: the Model m":                     contexts,
		"Digest: the Model m":                       digest,
		"Notes: the Model m":                        notes,
		"LatentIDs: the Model m":                    ids,
		"Prepared.Apply: the prepared call p":       prepared.Apply(x, x),
		"PreparedAppend.Apply: the prepared call p": appended.Apply(x, x, x, x, x),
		"PreparedCall.Apply: the prepared call p":   call.Apply(Layer{}),
		"ApplyQK: Step.Pool":                        ApplyQK(open, BSHD(memory, 1), none, pooled),
		"Append: Step.Pool":                         Append(open, none, BSHD(make([]float32, 64), 1), none, cache, slotted),
		"MoveSlots: Step.Pool":                      MoveSlots(open, cache, moved),
		"Apply: Step.Pool":                          Apply(open, Call{Q: BSHD(memory, 1).Any()}, pooled),
		"Prepare: Step.Pool":                        prepare,
		"PrepareCall: Step.Pool":                    prepareCall,
	} {
		var of *Error
		if !errors.Is(err, ErrClosed) || errors.As(err, &of) ||
			err.Error() != "rope."+want+" is closed, or was never made" {
			t.Errorf("%v, want that %s is closed", err, want)
		}
	}
}

// Handles that no constructor made are closed ones.
func TestZeroHandles(t *testing.T) {
	var c Context
	var model Model
	var pool Pool
	q := make([]float32, 64)
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0), Pool: &pool}
	_, err1 := c.Info(0)
	_, err2 := c.InvFreq(0)
	_, err3 := model.Config(0)
	_, err4 := model.LayerType(0)
	_, err5 := model.Contexts(1)
	err6 := ApplyQK(mustNew(t, plain(64)), BSHD(q, 1), Tensor[float32]{}, step)
	for _, err := range []error{ApplyTHD(&c, []int64{1}, q, 1, nil, 0), err1, err2, err3, err4, err5, err6} {
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	if c.Backend() != "" || c.ValidBelow() != 0 || c.Close() != nil || model.Close() != nil || pool.Close() != nil {
		t.Error("a zero handle is a closed one")
	}
}

// What a forgotten error leaves, and an atomic.Pointer before its first Swap.
func TestNilHandles(t *testing.T) {
	var current atomic.Pointer[Context]
	if err := current.Swap(mustNew(t, plain(64))).Close(); err != nil { // README, "Goroutines"
		t.Error(err)
	}
	c, err := New(Config{})
	if c != nil || err == nil {
		t.Fatal(c, err)
	}
	var model *Model
	var pool *Pool
	q := make([]float32, 64)
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0)}
	_, err1 := c.Info(0)
	_, err2 := c.InvFreq(0)
	_, err3 := model.Config(0)
	_, err4 := model.LayerType(0)
	_, err5 := model.Contexts(1)
	for _, err := range []error{ApplyTHD(c, []int64{1}, q, 1, nil, 0), ApplyQK(c, BSHD(q, 1), Tensor[float32]{}, step),
		ApplyQKTo(c, BSHD(q, 1), Tensor[float32]{}, BSHD(q, 1), Tensor[float32]{}, step),
		FillCosSin(c, step, Packed(q)), err1, err2, err3, err4, err5} {
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	if c.Backend() != "" || c.ValidFrom() != 0 || c.ValidBelow() != 0 || model.LayerTypes() != nil {
		t.Error("a nil handle knows something")
	}
	if c.Close() != nil || model.Close() != nil || pool.Close() != nil {
		t.Error("closing nil is nothing")
	}
}

func TestScalingsThatNeedTheLength(t *testing.T) {
	short, long := []float64{1, 1, 1, 1}, []float64{2, 2, 2, 2}
	numbers := map[Scaling]Config{
		ScalingDefault:      {},
		ScalingLinear:       {Factor: 2},
		ScalingDynamic:      {Factor: 2, MaxPositionEmbeddings: 2048},
		ScalingDynamicSteps: {Factor: 2, MaxPositionEmbeddings: 2048},
		ScalingYarn:         {Factor: 2, OriginalMaxPositionEmbeddings: 2048},
		ScalingLongRope: {ShortFactor: short, LongFactor: long, Factor: 2,
			OriginalMaxPositionEmbeddings: 2048},
		ScalingLlama3: {Factor: 2, LowFreqFactor: 1, HighFreqFactor: 4,
			OriginalMaxPositionEmbeddings: 2048},
		ScalingProportional: {},
		ScalingNope:         {},
	}
	for _, c := range constants {
		if c.kind != "Scaling" {
			continue
		}
		cfg, known := numbers[Scaling(c.value)]
		cfg.HeadDim, cfg.Theta, cfg.Pairing, cfg.Scaling = 8, 10000, PairingHalves, Scaling(c.value)
		if next, err := cfg.NextChange(1); !known || err != nil || (next != math.MaxInt64) != cfg.NeedsSeqLen() {
			t.Error(c.name, known, next, err)
		}
	}
}

func TestValidBelow(t *testing.T) {
	if c := mustNew(t, plain(64)); c.ValidFrom() != 0 || c.ValidBelow() != math.MaxInt64 {
		t.Error(c.ValidFrom(), c.ValidBelow())
	}
	dynamic := Config{HeadDim: 64, Theta: 10000, Pairing: PairingHalves, Scaling: ScalingDynamic, Factor: 2,
		MaxPositionEmbeddings: 2048, SeqLen: 100}
	if c := mustNew(t, dynamic); c.ValidFrom() != 0 || c.ValidBelow() != 2049 {
		t.Error(c.ValidFrom(), c.ValidBelow())
	}
	dynamic.SeqLen = 5000
	if c := mustNew(t, dynamic); c.ValidFrom() != 5000 || c.ValidBelow() != 5001 {
		t.Error(c.ValidFrom(), c.ValidBelow())
	}
	sets, err := NewSets([]Config{{HeadDim: 64, Theta: 10000, Pairing: PairingHalves, Scaling: ScalingDynamicSteps, Factor: 1,
		MaxPositionEmbeddings: 2048, SeqLen: 1}, {HeadDim: 64, Theta: 10000, Pairing: PairingHalves,
		Scaling: ScalingDynamicSteps, Factor: 1, MaxPositionEmbeddings: 2048, SeqLen: 3000}})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := sets.Info(1); err != nil || info.ValidFrom != 2049 || info.ValidBelow != 4097 {
		t.Error(info, err)
	}
	if sets.Close(); sets.ValidFrom() != 0 || sets.ValidBelow() != 0 {
		t.Error("a closed context is right for none")
	}
	long := plain(64)
	long.SeqLen = 5000 // engines need not know which scalings use it
	if c := mustNew(t, long); c.ValidFrom() != 0 {
		t.Error(c.ValidFrom())
	}
	dynamic.SeqLen = 0 // NextChange has the length as its argument
	if next, err := dynamic.NextChange(1); err != nil || next != 2049 {
		t.Error(next, err)
	}
}

// The loop of Model.Contexts, for a model of LongRoPE: the contexts are those of every length, and are
// made anew where the frequencies change.
func TestContextsOfAGrowingSequence(t *testing.T) {
	short, long := "1.0", "1.3"
	for i := 1; i < 16; i++ {
		short, long = short+", 1.05", long+", 2.6"
	}
	model, err := FromJSON([]byte(`{"model_type": "phi3", "hidden_size": 64, "num_attention_heads": 2,
		"num_hidden_layers": 2, "rope_theta": 10000.0, "max_position_embeddings": 128,
		"original_max_position_embeddings": 32,
		"rope_scaling": {"type": "longrope", "short_factor": [` + short + `], "long_factor": [` + long + `]}}`))
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	_, err = model.Contexts(0)
	refused(t, err, "rope.Contexts: SeqLen (0) must be positive")
	made, validBelow := 0, int64(0)
	var contexts []*Context
	for length := int64(20); length < 60; length++ {
		if length >= validBelow {
			old := contexts
			if contexts, err = model.Contexts(length); err != nil {
				t.Fatal(err)
			}
			for _, c := range old {
				c.Close()
			}
			validBelow = math.MaxInt64
			for _, c := range contexts {
				validBelow = min(validBelow, c.ValidBelow())
			}
			made++
		}
		cfg, err := model.Config(0)
		if err != nil {
			t.Fatal(err)
		}
		cfg.SeqLen = length
		want, err := mustNew(t, cfg).InvFreq(0)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := contexts[0].InvFreq(0); err != nil || !slices.Equal(got, want) {
			t.Fatal(length, got, want, err)
		}
	}
	if made != 2 || validBelow != math.MaxInt64 {
		t.Errorf("contexts were made %d times, the last valid below %d", made, validBelow)
	}
}

// So do the loops that README and Model.Contexts show.
func TestShownLoopsCloseOldContexts(t *testing.T) {
	for _, name := range []string{"README.md", "model.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`old := contexts\n[^}]*contexts, err = model.Contexts\((?s:.*?)range old {.*\n.*c.Close\(\)\n`).Match(text) {
			t.Errorf("%s: contexts are replaced and not closed", name)
		}
	}
}

// Closing twice is nothing, and every call on what is closed says so.
func TestClosed(t *testing.T) {
	c := mustNew(t, plain(64))
	if !strings.HasPrefix(c.Backend(), "cpu") {
		t.Error(c.Backend())
	}
	c.Close()
	c.Close()
	q := make([]float32, 64)
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0)}
	_, err1 := c.Info(0)
	_, err2 := c.InvFreq(0)
	for _, err := range []error{ApplyTHD(c, []int64{1}, q, 1, nil, 0), ApplyQK(c, BSHD(q, 1), Tensor[float32]{}, step),
		FillCosSin(c, step, Packed(q)), err1, err2} {
		if !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	pool, err := NewPool(2)
	if err != nil {
		t.Fatal(err)
	}
	pool.Close()
	pool.Close()
	step.Pool = pool
	if err := ApplyQK(mustNew(t, plain(64)), BSHD(q, 1), Tensor[float32]{}, step); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
