package rope

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// fenced returns n elements inside a larger array, and a check that nothing around them has changed.
func fenced[T Element](r *rand.Rand, n int) (inside []T, intact func() bool) {
	const fence = 2048
	whole := random[T](r, n+2*fence)
	before := slices.Clone(whole)
	inside = whole[fence : fence+n : fence+n]
	return inside, func() bool {
		return slices.Equal(whole[:fence], before[:fence]) && slices.Equal(whole[fence+n:], before[fence+n:])
	}
}

// Sections of one to five axes, every pairing, with and without tables: what is accepted writes inside
// its slices only. Sections are four numbers in C, so five axes with them are refused.
func TestNothingIsWrittenOutsideSlices(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	accepted := 0
	for _, pairing := range []Pairing{PairingHalves, PairingInterleaved, PairingInterleavedToHalves, PairingHalvesPerAxis} {
		for axes := 1; axes <= 9; axes++ {
			for variant := range 12 {
				cfg := Config{HeadDim: 64, Theta: 10000, Pairing: pairing, Axes: axes}
				switch variant % 4 {
				case 1:
					cfg.MRopeSection = []int{32}
				case 2:
					cfg.MRopeSection = []int{8, 8, 8, 8}
				case 3:
					cfg.MRopeSection = []int{16, 16, 0, 0}
				}
				switch variant / 4 {
				case 1:
					cfg.FreqFactors = slices.Repeat([]float64{1}, 32)
				case 2:
					cfg.PairAxis = make([]uint8, 32)
				}
				c, err := New(cfg)
				if axes > 4 && cfg.MRopeSection != nil && err == nil {
					t.Fatalf("%+v was accepted", cfg)
				}
				if err != nil {
					continue
				}
				accepted++
				q, qIntact := fenced[float32](r, 2*64)
				out, outIntact := fenced[float32](r, 2*64)
				step := Step{Batch: 1, Tokens: 2, Positions: AxesBatchTokenIDs(make([]int64, 2*axes))}
				for i := range 2 * axes {
					step.Positions = AxesBatchTokenIDs(slices.Repeat([]int64{int64(i)}, 2*axes))
					if err := ApplyQK(c, BSHD(q, 1), Tensor[float32]{}, step); err != nil {
						t.Fatal(err)
					}
					if err := ApplyQKTo(c, BSHD(out, 1), Tensor[float32]{}, BSHD(q, 1), Tensor[float32]{}, step); err != nil {
						t.Fatal(err)
					}
				}
				if !qIntact() || !outIntact() {
					t.Fatalf("%+v: elements outside the slices have changed", cfg)
				}
				c.Close()
			}
		}
	}
	if accepted < 20 {
		t.Errorf("only %d configurations were accepted", accepted)
	}
}

// A table is read only if it has an entry per pair; what lies behind a short one is nobody's business.
func TestShortTables(t *testing.T) {
	for _, n := range []int{1, 31, 511, 513} {
		cfg := Config{HeadDim: 1024, Theta: 10000, Pairing: PairingHalves, Axes: 8, PairAxis: make([]uint8, n)}
		_, err := New(cfg)
		refused(t, err, "must be 512, the number of pairs")
	}
}

func TestAbsentTensors(t *testing.T) {
	c := mustNew(t, plain(64))
	r := rand.New(rand.NewPCG(17, 18))
	x := random[float32](r, 3*64)
	want := slices.Clone(x)
	ids := []int64{5, 6, 7}
	if err := ApplyTHD(c, ids, want, 1, nil, 0); err != nil {
		t.Fatal(err)
	}
	step := Step{Batch: 1, Tokens: 3, Positions: Offset(5)}
	none := []float32{}
	for name, call := range map[string]func(q []float32) error{
		"THD, k":     func(q []float32) error { return ApplyTHD(c, ids, q, 1, none, 0) },
		"THD, q":     func(q []float32) error { return ApplyTHD(c, ids, none, 0, q, 1) },
		"THD, q[:0]": func(q []float32) error { return ApplyTHD(c, ids, q, 1, q[:0], 0) },
		"QK, k":      func(q []float32) error { return ApplyQK(c, BSHD(q, 1), BSHD(q[:0], 0), step) },
		"QK, q":      func(q []float32) error { return ApplyQK(c, BHSD(none, 0), BSHD(q, 1), step) },
		"QKTo, k": func(q []float32) error {
			return ApplyQKTo(c, BSHD(q, 1), BSHD(none, 0), BSHD(q, 1), BSHD(none, 0), step)
		},
		"Apply": func(q []float32) error {
			empty := BSHD(none, 0).Any()
			return Apply(c, Call{Q: empty, QOut: empty, K: BSHD(q, 1).Any(), V: empty, VOut: empty, Rest: empty, RestOut: empty}, step)
		},
		"PrepareCall": func(q []float32) error {
			empty := BSHD(none, 0).Any()
			p, err := PrepareCall(c, Call{Q: empty, QOut: empty, K: BSHD[float32](nil, 1).Any(), V: empty, VOut: empty}, step)
			if err != nil {
				return err
			}
			defer p.Close()
			return p.Apply(Layer{Q: ArrayOf(none), K: ArrayOf(q)})
		},
	} {
		got := slices.Clone(x)
		if err := call(got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// So is memory of a cache for which there is no tensor, as KVCache has it and as Cache does.
	k, empty := BSHD(x, 1), BSHD(none, 0)
	keys, moved := make([]float32, 3*64), step
	cache := KVCache[float32, float32]{K: NHD(keys, 1), V: NHD(none, 0), Pages: 1, PageSize: 3}
	step.Slots = LinearSlots([]int32{0})
	moved.Slots, moved.Operation, moved.Positions = step.Slots, OperationShift, Same(0)
	if err := Append(c, empty, k, empty, cache, step); err != nil || !slices.Equal(keys, want) {
		t.Error(err)
	}
	if err := MoveSlots(c, cache, moved); err != nil || !slices.Equal(keys, want) {
		t.Error(err)
	}
	clear(keys)
	call := Call{K: k.Any(), Cache: &Cache{K: cache.K.Any(), V: cache.V.Any(), Pages: 1, PageSize: 3}}
	if err := Apply(c, call, step); err != nil || !slices.Equal(keys, want) {
		t.Error(err)
	}
	clear(keys)
	shape := cache
	shape.K.Data = nil
	p := mustPrepareAppend(t, c, empty, BSHD[float32](nil, 1), empty, shape, step)
	if err := p.Apply(nil, x, none, keys, none); err != nil || !slices.Equal(keys, want) {
		t.Error(err)
	}
	// Not so memory to which a tensor goes, nor an output that was asked for.
	v, kOut := k.Any(), BSHD(make([]float32, 3*64), 1)
	for name, call := range map[string]Call{
		"Cache.K.Heads (0)": {K: k.Any(), V: v, Cache: &Cache{K: NHD(none, 0).Any(), V: cache.K.Any(), Pages: 1, PageSize: 3}},
		"Cache.V.Heads (0)": {K: k.Any(), V: v, VOut: kOut.Any(), Cache: &Cache{K: cache.K.Any(), V: NHD(none, 0).Any(), Pages: 1, PageSize: 3}},
	} {
		refused(t, Apply(c, call, step), name)
	}
	noKeys := KVCache[float32, float32]{K: NHD(none, 0), V: cache.K, Pages: 1, PageSize: 3}
	refused(t, AppendTo(c, empty, k, k, empty, kOut, empty, noKeys, step), "KVCache.K.Heads (0)")
	refused(t, AppendTo(c, empty, k, k, empty, empty, kOut, cache, step), "KVCache.V.Heads (0)")
	one, pages := BSHD[float32](nil, 1), NHD[float32](nil, 1)
	_, err := PrepareCall(c, Call{K: one.Any(), V: one.Any(), Cache: &Cache{K: NHD(none, 0).Any(), V: pages.Any(), Pages: 1, PageSize: 3}}, step)
	refused(t, err, "Cache.K.Heads (0)")
	for name, memory := range map[string]KVCache[float32, float32]{
		"KVCache.K.Heads (0)": {K: NHD(none, 0), V: pages, Pages: 1, PageSize: 3},
		"KVCache.V.Heads (0)": {K: pages, V: NHD(none, 0), Pages: 1, PageSize: 3},
	} {
		_, err := PrepareAppendTo(c, empty, one, one, empty, one, one, memory, step)
		refused(t, err, name)
	}
	step.Slots = nil
	refused(t, Apply(c, Call{K: k.Any(), KOut: empty.Any()}, step), "kOut")
	refused(t, ApplyQKTo(c, empty, empty, empty, k, step), "kOut")
	refused(t, ApplyTHD(c, ids, none, 0, none, 0), "absent")
	refused(t, ApplyQK(c, BSHD(x, 0), BSHD(want, 1), step), "does not fit")
}

func TestTypesMayDiffer(t *testing.T) {
	c := mustNew(t, plain(64))
	r := rand.New(rand.NewPCG(19, 20))
	q, k := random[float32](r, 3*4*64), random[BFloat16](r, 3*2*64)
	wantQ, wantK := slices.Clone(q), slices.Clone(k)
	ids := []int64{5, 6, 7}
	if err := errors.Join(ApplyTHD(c, ids, wantQ, 4, nil, 0), ApplyTHD(c, ids, wantK, 2, nil, 0)); err != nil {
		t.Fatal(err)
	}
	qOut, kOut := make([]float32, len(q)), make([]BFloat16, len(k))
	step := Step{Batch: 1, Tokens: 3, Positions: TokenIDs(ids)}
	if err := ApplyQKTo(c, BSHD(qOut, 4), BSHD(kOut, 2), BSHD(q, 4), BSHD(k, 2), step); err != nil {
		t.Fatal(err)
	}
	if err := ApplyQK(c, BSHD(q, 4), BSHD(k, 2), step); err != nil {
		t.Fatal(err)
	}
	for _, got := range [][]float32{q, qOut} {
		if !slices.Equal(got, wantQ) {
			t.Error("q differs")
		}
	}
	for _, got := range [][]BFloat16{k, kOut} {
		if !slices.Equal(got, wantK) {
			t.Error("k differs")
		}
	}
}

func TestPromptIDsBeyondMemory(t *testing.T) {
	for _, runs := range [][]PromptPart{
		{{Text: 1, T: 1, H: 1 << 19, W: 1 << 19}},
		{{T: 1<<31 - 1, H: 1<<31 - 1, W: 1<<31 - 1}},
		{{Text: 1<<63 - 1}, {Text: 1<<63 - 1}},
		{{Text: 1 << 27}, {Text: 1}},
		{{Text: 1<<27 + 1}},
	} {
		if _, _, err := PromptIDs(runs, 0); !errors.Is(err, ErrOutOfMemory) {
			t.Errorf("%v: %v", runs, err)
		}
	}
	_, _, err := PromptIDs([]PromptPart{{Text: -1}}, 0)
	refused(t, err, "parts[0] has a negative text")
	if ids, next, err := PromptIDs(nil, 7); err != nil || len(ids) != 0 || next != 7 {
		t.Error(ids, next, err)
	}
}

func TestOtherVersionsAreRefused(t *testing.T) {
	for loaded, good := range map[int]bool{100: true, 107: true, 0: false, 99: false, 200: false, 10100: false} {
		err := checkVersion(loaded)
		if (err == nil) != good || err != nil && !errors.Is(err, ErrUnsupported) {
			t.Errorf("%d: %v", loaded, err)
		}
	}
}

// What needs no Context and no Model asks for the version first.
func TestEveryFunctionAsksForTheVersion(t *testing.T) {
	asked, wrong := compatible, errors.New("another version")
	compatible = func() error { return wrong }
	defer func() { compatible = asked }()
	cfg, text, gguf := plain(64), []byte("{}"), []byte("GGUF")
	of := func(_ any, err error) error { return err }
	_, _, shardErr := ShardIDs(Step{Batch: 1, Tokens: 4, Positions: Offset(7)})
	_, _, promptErr := PromptIDs([]PromptPart{{Text: 3}}, 0)
	for name, err := range map[string]error{
		"New": of(New(cfg)), "NewSets": of(NewSets([]Config{cfg})), "NewPool": of(NewPool(1)), "FromJSON": of(FromJSON(text)),
		"FromGGUF": of(FromGGUF(gguf)), "FromGGUFValues": of(FromGGUFValues(nil, nil)), "LoadGGUF": of(LoadGGUF("none")),
		"NextChange": of(cfg.NextChange(1)), "Digest": of(cfg.Digest(DigestBits)), "ShardIDs": shardErr, "PromptIDs": promptErr,
	} {
		if !errors.Is(err, wrong) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The race detector is told of what C reads: here of nothing, for any number of batch rows.
func TestCallsWithoutTokensEndAtOnce(t *testing.T) {
	c, err := New(Config{HeadDim: 4, Theta: 10000, Pairing: PairingHalves})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	step := Step{Batch: math.MaxInt, Positions: StridedIDs([]int64{7}, 0, 0, 0)}
	if err := ApplyQK(c, Strided([]float32{}, 1, Strides{}), Tensor[float32]{}, step); err != nil {
		t.Fatal(err)
	}
	if err := FillCosSin(c, step, Packed([]float32{})); err != nil {
		t.Fatal(err)
	}
}
