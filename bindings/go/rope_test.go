package rope

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

func refused(t *testing.T, err error, words string) {
	t.Helper()
	if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), words) {
		t.Errorf("%v, want an invalid argument with %q", err, words)
	}
}

func TestVersions(t *testing.T) {
	if LibraryVersion() != Version || headerVersion() != Version {
		t.Errorf("package %s, library %s, header %s", Version, LibraryVersion(), headerVersion())
	}
	// What the other languages say, as far as they are here.
	quoted := strconv.Quote(Version)
	lines := map[string]string{
		"../rust/Cargo.toml":       "version = " + quoted,
		"../python/pyproject.toml": "version = " + quoted,
	}
	parts := strings.Split(Version, ".")
	for i, name := range []string{"MAJOR", "MINOR", "PATCH"} {
		header, err := os.ReadFile(filepath.Join("..", "..", "include", "librope", "rope.h"))
		line := fmt.Sprintf("#define ROPE_VERSION_%s %s\n", name, parts[i])
		if err != nil || !strings.Contains(string(header), line) {
			t.Errorf("rope.h does not say %q: %v", line, err)
		}
	}
	for file, line := range lines {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		// A project that reads its version from the header cannot be wrong.
		dynamic := strings.Contains(string(text), "dynamic = [") && strings.Contains(string(text), `"version"`)
		if !dynamic && !strings.Contains(string(text), line) {
			t.Errorf("%s does not say %q", file, line)
		}
	}
}

func TestErrors(t *testing.T) {
	_, err := New(Config{HeadDim: 127, Theta: 10000, Pairing: PairingHalves})
	refused(t, err, "HeadDim (127)")
	var e *Error
	if !errors.As(err, &e) || e.Status != ErrInvalidArgument || !strings.HasPrefix(e.Message, "rope.New: ") {
		t.Errorf("%#v", e)
	}
	if errors.Is(err, ErrParse) {
		t.Error("an invalid argument is no parse error")
	}
	_, err = FromJSON([]byte(`{"model_type": "llama", "head_dim": 64, "num_hidden_layers": 1,
		"rope_scaling": {"rope_type": "lama3"}}`))
	if !errors.Is(err, ErrParse) || !strings.Contains(err.Error(), "lama3") {
		t.Error(err)
	}
	if _, err := New(Config{HeadDim: 64, Theta: 1e4, Pairing: PairingHalves, Device: Device{true, 99}}); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
	if s := Status(-99).Error(); s == "" {
		t.Error("an unknown status has a text, too")
	}

	// Goroutines move between threads; the text is that of their own call.
	var wait sync.WaitGroup
	for n := range 50 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for range 200 {
				dim := 101 + 2*n
				_, err := New(plain(dim))
				refused(t, err, fmt.Sprintf("(%d)", dim))
				runtime.Gosched()
			}
		}()
	}
	wait.Wait()
}

func TestConfigIsChecked(t *testing.T) {
	base := plain(64)
	change := func(f func(*Config)) error {
		cfg := base
		f(&cfg)
		c, err := New(cfg)
		if err == nil {
			c.Close()
		}
		return err
	}
	refused(t, change(func(c *Config) { c.Pairing = 0 }), "Pairing (0)")
	refused(t, change(func(c *Config) { c.Theta = 0 }), "Theta (0)")
	refused(t, change(func(c *Config) { c.RotaryDim = 63 }), "RotaryDim (63)")
	refused(t, change(func(c *Config) { c.HeadDim = math.MaxInt }), fmt.Sprintf("HeadDim (%d)", math.MaxInt))
	refused(t, change(func(c *Config) { c.HeadDim = math.MinInt }), "must not be below -2147483648")
	refused(t, change(func(c *Config) { c.Factor = 8 }), "Factor (8)")
	refused(t, change(func(c *Config) { c.MRopeSection = make([]int, 5) }), "up to 4")
	refused(t, change(func(c *Config) { c.FreqFactors = make([]float64, 31) }), "rope.New: the length of ShortFactor, LongFactor, FreqFactors, "+
		"InvFreq, PairAxis and rows of Frequency (31) must be 32, the number of pairs")
	refused(t, change(func(c *Config) {
		c.FreqFactors, c.PairAxis = make([]float64, 32), make([]uint8, 31)
	}), "one entry per pair")
	_, err := NewSets(nil)
	refused(t, err, "cfgs (0)")
	_, err = NewSets(make([]Config, 257))
	refused(t, err, "257")
}

func TestSlicesOfOtherLengthsAreRefused(t *testing.T) {
	c := mustNew(t, plain(64))
	q := make([]float32, 3*2*64)
	for i := range q {
		q[i] = 1
	}
	before := slices.Clone(q)
	refused(t, ApplyTHD(c, make([]int64, 4), q, 2, nil, 0), "4 tokens")
	refused(t, ApplyTHD(c, make([]int64, 3), q, 3, nil, 0), "3 heads")
	refused(t, ApplyTHD(c, make([]int64, 3), q, 0, nil, 0), "0 heads")
	refused(t, ApplyTHD(c, make([]int64, 3), q, -2, nil, 0), "-2 heads")
	refused(t, ApplyTHD[float32](c, make([]int64, 3), nil, 0, nil, 0), "absent")

	step := Step{Batch: 1, Tokens: 3, Positions: Offset(0)}
	whole := BSHD(q, 2)
	try := func(q Tensor[float32], words string, change ...func(*Step)) {
		t.Helper()
		s := step
		for _, f := range change {
			f(&s)
		}
		refused(t, ApplyQK(c, q, Tensor[float32]{}, s), words)
	}
	try(BSHD(q, 1), "does not fit")
	try(BSHD(q, 0), "does not fit")
	try(BSHD(q, -2), "does not fit")
	try(BSHD(q, math.MaxInt), "does not fit")
	try(Tensor[float32]{Data: q, Heads: 2}, "q.Layout (0)")
	try(BSHD[float32](nil, 2), "does not fit")
	try(Strided(q, 2, Strides{Token: 129, Head: 64}), "does not fit")
	try(Strided(q, 3, Strides{Head: math.MaxInt / 2}), "does not fit")
	try(Strided(q, 2, Strides{Token: -128, Head: 64}), "does not fit")
	try(Strided(q, 2, Strides{Token: 128}), "overlap")
	try(whole, "batch -1", func(s *Step) { s.Batch = -1 }) // the value itself
	try(whole, "tokens -3", func(s *Step) { s.Tokens = -3 })
	try(whole, "does not fit", func(s *Step) { s.Tokens = math.MaxInt })
	try(whole, "Step.Positions or Step.CosSin", func(s *Step) { s.Positions = Positions{} })
	four := make([]int32, 4)
	try(whole, "4 entries", func(s *Step) { s.Positions = TokenIDs(four) })
	try(whole, "4 entries", func(s *Step) { s.Positions = BatchTokenIDs(four) })
	try(whole, "4 entries", func(s *Step) { s.Positions = AxesBatchTokenIDs(four) })
	try(whole, "4 entries", func(s *Step) { s.Positions = SeqOffsets(four) })
	try(whole, "4 entries", func(s *Step) { s.Positions = StridedIDs(four, 0, 0, 2) })
	try(whole, "0 entries", func(s *Step) { s.Positions = TokenIDs[int64](nil) })
	try(whole, "CuSeqlens (0 entries)", func(s *Step) { s.CuSeqlens = []int32{} })
	try(whole, "CuSeqlens[1] (4)", func(s *Step) { s.CuSeqlens = []int32{0, 4} })
	try(whole, "FreqSets must be nil", func(s *Step) { s.FreqSets = []int32{0} })
	try(whole, "FreqSets (2 entries)", func(s *Step) { s.FreqSets = []int32{0, 0} })
	table := make([]float32, 95)
	rows := func(r *CosSin) func(*Step) {
		return func(s *Step) { s.Positions, s.CosSin = Positions{}, r }
	}
	try(whole, "95 elements", rows(Split(table, table)))
	try(whole, "0 elements", rows(Split(table, nil)))
	try(whole, "exactly one", func(s *Step) { s.CosSin = Packed(make([]float32, 192)) })
	try(whole, "made by Packed", func(s *Step) { s.CosSin = &CosSin{} })
	refused(t, FillCosSin(c, step, nil), "made by Packed")
	refused(t, ApplyQK(c, whole, BSHD(q[64:], 2), step), "does not fit")
	refused(t, ApplyQKTo(c, BSHD(q[:0], 0), Tensor[float32]{}, whole, Tensor[float32]{}, step), "qOut")
	refused(t, ApplyQK(c, whole, whole, step), "overlaps")
	refused(t, ApplyQKTo(c, BSHD(q[:128], 2), Tensor[float32]{}, BSHD(q[64:192], 2), Tensor[float32]{},
		Step{Batch: 1, Tokens: 1, Positions: Offset(0)}), "overlaps")
	refused(t, FillCosSin(c, step, Packed(make([]float32, 191))), "191 elements")
	if !slices.Equal(q, before) {
		t.Error("an error wrote something")
	}
	if err := ApplyQK(c, BSHD[float32](nil, 2), BSHD[float32](nil, 1), Step{Batch: 1, Positions: Offset(0)}); err != nil {
		t.Error("no tokens:", err)
	}
	if err := ApplyTHD[float32](c, nil, nil, 2, nil, 1); err != nil {
		t.Error("no tokens:", err)
	}
}

// Zero is what a field is that nobody has set: a model would run without RoPE.
func TestForgottenBatch(t *testing.T) {
	c := mustNew(t, plain(64))
	q := slices.Repeat([]float32{1}, 4*2*64)
	before := slices.Clone(q)
	none := Tensor[float32]{}
	step := Step{Tokens: 4, Positions: Offset(1)}
	strided := Strided(q, 2, Strides{Token: 128, Head: 64})
	rows := make([]float32, 4*80)
	padded := Packed(rows)
	padded.Stride = 80
	for name, err := range map[string]error{
		"q":    ApplyQK(c, strided, none, step),
		"k":    ApplyQK(c, none, strided, step),
		"BSHD": ApplyQK(c, BSHD(q, 2), none, step),
		"ids":  ApplyQK(c, strided, none, Step{Tokens: 4, Positions: TokenIDs([]int32{1, 2, 3, 4})}),
		"To":   ApplyQKTo(c, strided, none, strided, none, step),
		"rows": ApplyQK(c, strided, none, Step{Tokens: 4, CosSin: padded}),
		"fill": FillCosSin(c, step, padded),
	} {
		if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), "Step.Batch (0) is required") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !slices.Equal(q, before) {
		t.Error("an error wrote something")
	}
	// An empty batch has empty tensors.
	for _, tensor := range []Tensor[float32]{BSHD(q[:0], 2), BHSD([]float32{}, 2), BSHD[float32](nil, 2),
		Strided(q[:0], 2, Strides{Token: 128, Head: 64})} {
		if err := ApplyQK(c, tensor, tensor, step); err != nil {
			t.Errorf("%+v: %v", tensor, err)
		}
	}
	if err := ApplyQK(c, strided, none, Step{Positions: Offset(1)}); err != nil {
		t.Error("no tokens:", err)
	}
}

// Keys that are shifted by one distance are those of the positions that they come to.
func TestShiftByOneDistance(t *testing.T) {
	cfg := plain(64)
	cfg.Angle = AngleExact
	c := mustNew(t, cfg)
	r := rand.New(rand.NewPCG(21, 22))
	x := random[float32](r, 2*3*64)
	none := Tensor[float32]{}
	at := func(x []float32, operation Operation, p Positions) []float32 {
		x = slices.Clone(x)
		if err := ApplyQK(c, BSHD(x, 1), none, Step{Batch: 2, Tokens: 3, Positions: p, Operation: operation}); err != nil {
			t.Fatal(err)
		}
		return x
	}
	keys := at(x, OperationForward, Offset(100))
	moved := at(keys, OperationShift, Same(-37))
	if !slices.Equal(moved, at(keys, OperationShift, BatchTokenIDs(slices.Repeat([]int64{-37}, 6)))) {
		t.Error("one distance is another than the same for each token")
	}
	for i, want := range at(x, OperationForward, Offset(63)) {
		if !(math.Abs(float64(moved[i]-want)) < 1e-6) {
			t.Fatal(i, moved[i], want)
		}
	}
	if !slices.Equal(at(x, OperationForward, Same(5)), at(x, OperationForward, TokenIDs([]int32{5, 5, 5}))) {
		t.Error("one position for all")
	}
	for _, p := range []Positions{Offset(-37), SeqOffsets([]int32{-37, -37})} {
		refused(t, ApplyQK(c, BSHD(keys, 1), none, Step{Batch: 2, Tokens: 3, Positions: p, Operation: OperationShift}), "Same moves all")
	}
}

func TestPackedBuffer(t *testing.T) {
	c := mustNew(t, plain(64))
	r := rand.New(rand.NewPCG(1, 2))
	const tokens, row = 9, 10 * 64
	buffer := random[BFloat16](r, tokens*row)
	got := slices.Clone(buffer)
	strides := Strides{Token: row, Head: 64}
	step := Step{Batch: 1, Tokens: tokens, Positions: Offset(100)}
	q, k := Strided(got, 6, strides), Strided(got[6*64:], 2, strides)
	if err := ApplyQK(c, q, k, step); err != nil {
		t.Fatal(err)
	}
	for token := range tokens {
		want := slices.Clone(buffer[token*row : (token+1)*row])
		if err := ApplyTHD(c, []int64{100 + int64(token)}, want[:8*64], 8, nil, 0); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got[token*row:(token+1)*row], want) {
			t.Fatal("token", token)
		}
	}
	refused(t, ApplyQK(c, q, Strided(got[5*64:], 2, strides), step), "overlaps")
}

func TestRowsGiveTheBitsOfPositions(t *testing.T) {
	c := mustNew(t, plain(128))
	r := rand.New(rand.NewPCG(3, 4))
	q := random[BFloat16](r, 2*3*4*128)
	step := Step{Batch: 2, Tokens: 3, Positions: BatchTokenIDs([]int64{5, 6, 7, 1000, 1001, 1002})}
	want := slices.Clone(q)
	if err := ApplyQK(c, BSHD(want, 4), Tensor[BFloat16]{}, step); err != nil {
		t.Fatal(err)
	}
	rows, cos, sin := make([]float32, 6*128), make([]float32, 6*64), make([]float32, 6*64)
	for _, table := range []*CosSin{Packed(rows), Split(cos, sin)} {
		if err := FillCosSin(c, step, table); err != nil {
			t.Fatal(err)
		}
		got := slices.Clone(q)
		err := ApplyQK(c, BSHD(got, 4), Tensor[BFloat16]{}, Step{Batch: 2, Tokens: 3, CosSin: table})
		if err != nil || !slices.Equal(got, want) {
			t.Error("rows differ:", err)
		}
	}
}

func TestSetsAxesAndSequences(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	short, long := make([]float64, 48), make([]float64, 48)
	for i := range short {
		short[i], long[i] = 1+0.01*float64(i), 1+1.3*float64(i)
	}
	below := Config{HeadDim: 96, Theta: 10000, Pairing: PairingHalves, Scaling: ScalingLongRope, ShortFactor: short,
		LongFactor: long, OriginalMaxPositionEmbeddings: 4096, MaxPositionEmbeddings: 131072, SeqLen: 1}
	above := below
	next, err := below.NextChange(1)
	if err != nil || next != 4097 {
		t.Fatal(next, err)
	}
	above.SeqLen = next
	if next, err = above.NextChange(next); err != nil || next != math.MaxInt64 {
		t.Fatal(next, err)
	}
	both, err := NewSets([]Config{below, above})
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	x := random[float32](r, 2*96)
	got := slices.Clone(x)
	step := Step{Batch: 2, Tokens: 1, Positions: SeqOffsets([]int32{99, 89999})}
	refused(t, ApplyQK(both, BSHD(got, 1), Tensor[float32]{}, step), "FreqSets")
	step.FreqSets = []int32{0, 1}
	if err := ApplyQK(both, BSHD(got, 1), Tensor[float32]{}, step); err != nil {
		t.Fatal(err)
	}
	for i, cfg := range []Config{below, above} {
		want := slices.Clone(x[i*96 : i*96+96])
		if err := ApplyTHD(mustNew(t, cfg), []int64{[]int64{99, 89999}[i]}, want, 1, nil, 0); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got[i*96:i*96+96], want) {
			t.Error("set", i)
		}
	}

	cfg := Config{HeadDim: 128, Theta: 1e6, Pairing: PairingHalves, Axes: 3, MRopeSection: []int{16, 24, 24}}
	mrope := mustNew(t, cfg)
	ids, _, err := PromptIDs([]PromptPart{{Text: 1, T: 1, H: 4, W: 3}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	q := random[float32](r, 13*2*128)
	q2 := slices.Clone(q)
	refused(t, ApplyTHD(mrope, make([]int64, 13), q, 2, nil, 0), "one axis")
	var byToken []float32
	for token := range 13 {
		for axis := range 3 {
			byToken = append(byToken, float32(ids[axis*13+token]))
		}
	}
	if err := ApplyQK(mrope, BSHD(q, 2), Tensor[float32]{}, Step{Batch: 1, Tokens: 13, Positions: AxesBatchTokenIDs(ids)}); err != nil {
		t.Fatal(err)
	}
	if err := ApplyQK(mrope, BSHD(q2, 2), Tensor[float32]{}, Step{Batch: 1, Tokens: 13, Positions: BatchTokenAxesIDs(byToken)}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(q, q2) {
		t.Error("the same ids in another order")
	}

	packed := mustNew(t, plain(80))
	y := random[float32](r, 11*80)
	want := slices.Clone(y)
	step = Step{Batch: 1, Tokens: 11, Positions: SeqOffsets([]int64{0, 900, 131072}), CuSeqlens: []int32{0, 5, 5, 11}}
	if err := ApplyQK(packed, Tensor[float32]{}, BSHD(y, 1), step); err != nil {
		t.Fatal(err)
	}
	at := []int64{0, 1, 2, 3, 4, 131072, 131073, 131074, 131075, 131076, 131077}
	if err := ApplyTHD(packed, at, want, 1, nil, 0); err != nil || !slices.Equal(y, want) {
		t.Error("packed sequences differ:", err)
	}
}

func TestLatentAttention(t *testing.T) {
	// DeepSeek: one k_pe head of 64 channels inside a wider row is written into every head of k.
	const tokens, heads, lora = 3, 4, 512
	c := mustNew(t, Config{HeadDim: 192, Theta: 10000, Pairing: PairingInterleavedToHalves, RotaryDim: 64, RotaryOffset: 128})
	r := rand.New(rand.NewPCG(7, 8))
	kv, old := random[float32](r, tokens*(lora+64)), random[float32](r, tokens*heads*192)
	k := slices.Clone(old)
	in := Strided(kv[lora:], heads, Strides{Token: lora + 64})
	in.Span = true
	none := Tensor[float32]{}
	if err := ApplyQKTo(c, none, BSHD(k, heads), none, in, Step{Batch: 1, Tokens: tokens, Positions: Offset(5)}); err != nil {
		t.Fatal(err)
	}
	for token := range tokens {
		pe := kv[token*(lora+64)+lora:][:64]
		want, bound := rotateHead(pe, 0, PairingInterleavedToHalves, anglesAt(t, c, int64(5+token)), 1)
		for h := range heads {
			at := (token*heads + h) * 192
			if !slices.Equal(k[at:at+128], old[at:at+128]) {
				t.Fatal("channels without RoPE are left alone")
			}
			for i := range want {
				if !(math.Abs(float64(k[at+128+i])-want[i]) <= bound[i]) {
					t.Fatal(token, h, i)
				}
			}
		}
	}
}

func TestModel(t *testing.T) {
	model, err := FromJSON([]byte(`{"model_type": "smollm3", "hidden_size": 2048,
		"num_attention_heads": 16, "num_key_value_heads": 4, "rope_theta": 2000000.0,
		"no_rope_layer_interval": 4, "num_hidden_layers": 8}`))
	if err != nil {
		t.Fatal(err)
	}
	contexts, err := model.Contexts(0)
	if err != nil || len(contexts) != len(model.LayerTypes()) {
		t.Fatal(contexts, err)
	}
	nope := slices.Index(model.LayerTypes(), "nope")
	for layer := range 8 {
		kind, err := model.LayerType(layer)
		if err != nil || (kind == nope) != (layer%4 == 3) {
			t.Fatal(layer, kind, err)
		}
		q := []float32{}
		for range 2 * 128 {
			q = append(q, 1)
		}
		x := slices.Clone(q)
		if err := ApplyTHD(contexts[kind], []int64{17}, q, 2, nil, 0); err != nil {
			t.Fatal(err)
		}
		if slices.Equal(q, x) != (kind == nope) {
			t.Error("layer", layer)
		}
	}
	_, err = model.LayerType(8)
	refused(t, err, "layer (8)")
	_, err = model.Config(99)
	refused(t, err, "type (99)")
	model.Close()
	model.Close()
	if _, err := model.Config(0); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := model.LayerType(0); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	for _, c := range contexts {
		c.Close()
	}
	for _, text := range []string{"", "{", "[]", "\x00", `{"model_type": 3}`} {
		if _, err := FromJSON([]byte(text)); !errors.Is(err, ErrParse) {
			t.Errorf("%q: %v", text, err)
		}
	}

	// Every field survives the way to C and back.
	text := `{"model_type": "qwen2_vl", "hidden_size": 8192, "num_attention_heads": 64,
		"num_hidden_layers": 2, "rope_theta": 1000000.0,
		"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}`
	if model, err = FromJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	cfg, err := model.Config(0)
	if err != nil || cfg.Axes != 3 || !slices.Equal(cfg.MRopeSection, []int{16, 24, 24}) {
		t.Errorf("%+v, %v", cfg, err)
	}
}

func TestGoroutines(t *testing.T) {
	c := mustNew(t, plain(64))
	pool, err := NewPool(2)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	r := rand.New(rand.NewPCG(9, 10))
	x := random[float32](r, 700*8*64) // long enough for the pool
	step := Step{Batch: 1, Tokens: 700, Positions: Offset(77)}
	want := slices.Clone(x)
	if err := ApplyQK(c, BSHD(want, 8), Tensor[float32]{}, step); err != nil {
		t.Fatal(err)
	}
	step.Pool = pool
	var wait sync.WaitGroup
	for n := range 100 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			step := step
			if n%2 == 0 {
				step.Pool = nil
			}
			got := make([]float32, len(x))
			for range 5 {
				copy(got, x)
				if err := ApplyQK(c, BSHD(got, 8), Tensor[float32]{}, step); err != nil {
					t.Error(err)
				}
				if !slices.Equal(got, want) {
					t.Error("another result under load")
				}
				refused(t, ApplyQK(c, BSHD(got, 8), BSHD(got, 8), step), "overlaps")
			}
		}()
	}
	wait.Wait()
}

// Slices of a Go object that holds pointers elsewhere, and of the stack: what cgo's checks look at.
func TestWhereSlicesLive(t *testing.T) {
	c := mustNew(t, plain(8))
	type layer struct {
		name  *string
		q     [8]float32
		ids   [1]int64
		other []*layer
	}
	name := "first"
	object := &layer{name: &name, q: [8]float32{1}, ids: [1]int64{1}, other: make([]*layer, 3)}
	if err := ApplyQK(c, BSHD(object.q[:], 1), Tensor[float32]{}, Step{Batch: 1, Tokens: 1, Positions: TokenIDs(object.ids[:])}); err != nil {
		t.Fatal(err)
	}
	var onStack [8]float32
	onStack[0] = 1
	if err := ApplyTHD(c, []int64{1}, onStack[:], 1, nil, 0); err != nil {
		t.Fatal(err)
	}
	if onStack != object.q || math.Abs(float64(onStack[0])-math.Cos(1)) > 1e-6 {
		t.Error(onStack, object.q)
	}
}

func TestCallsDoNotAllocate(t *testing.T) {
	c := mustNew(t, plain(64))
	q, k := make([]BFloat16, 4*64), make([]BFloat16, 2*64)
	ids := []int64{5}
	step := Step{Batch: 1, Tokens: 1, Positions: TokenIDs(ids)}
	shift := step
	shift.Positions = Same(-5)
	full := testing.AllocsPerRun(1000, func() {
		if err := ApplyQK(c, BSHD(q, 4), BSHD(k, 2), shift); err != nil {
			t.Fatal(err)
		}
		if err := ApplyQK(c, BSHD(q, 4), BSHD(k, 2), step); err != nil {
			t.Fatal(err)
		}
	})
	short := testing.AllocsPerRun(1000, func() {
		if err := ApplyTHD(c, ids, q, 4, k, 2); err != nil {
			t.Fatal(err)
		}
	})
	if full != 0 || short != 0 {
		t.Errorf("ApplyQK allocates %v times, ApplyTHD %v times", full, short)
	}
}
