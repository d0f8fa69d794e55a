package rope

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const callDim, callTokens, latent = 32, 5, 48

func callStep() Step { return Step{Batch: 1, Tokens: callTokens, Positions: Offset(11)} }

// computedScale is what a call writes for adjacent channels.
func computedScale(x []float32) float32 {
	most := float32(0)
	for _, x := range x {
		most = max(most, float32(math.Abs(float64(x))))
	}
	return most / 127
}

func TestOutputsOfAnotherTypeAndHeadsThatRepeat(t *testing.T) {
	c, r := mustNew(t, plain(callDim)), rand.New(rand.NewPCG(1, 2))
	q := random[float32](r, callTokens*2*callDim)
	want, out := inFloat32(t, c, q, 2, callStep()), make([]BFloat16, 3*len(q))
	if err := Apply(c, Call{Q: BSHD(q, 2).Any(), QOut: BSHD(out, 6).Any()}, callStep()); err != nil {
		t.Fatal(err)
	}
	for i, x := range out {
		token, head, channel := i/(6*callDim), i/callDim%6, i%callDim
		if x != BFloat16FromFloat32(want[(token*2+head/3)*callDim+channel]) {
			t.Fatalf("element %d is %v", i, x.Float32())
		}
	}
}

func TestCodesOfOutputsAreThoseOfTheFormula(t *testing.T) {
	c, r := mustNew(t, plain(callDim)), rand.New(rand.NewPCG(3, 4))
	q := random[float32](r, callTokens*2*callDim)
	want, codes := inFloat32(t, c, q, 2, callStep()), make([]int8, len(q))
	apply := func(layout Layout, scale *Scale) {
		t.Helper()
		out := Tensor[int8]{Data: codes, Layout: layout, Heads: 2}
		if err := Apply(c, Call{K: BSHD(q, 2).Any(), KOut: out.Any().WithScale(scale)}, callStep()); err != nil {
			t.Fatal(err)
		}
	}
	scales := make([]float32, callTokens*2*2) // [batch, heads, tokens, groups], as the output
	apply(LayoutBHSD, &Scale{Data: scales, Computed: true, Group: 16})
	for i, scale := range scales {
		head, token, half := i/(2*callTokens), i/2%callTokens, i%2
		group := want[(token*2+head)*callDim+half*16:][:16]
		if scale != computedScale(group) {
			t.Fatalf("scale %d is %v", i, scale)
		}
		for j, x := range group {
			if codes[i*16+j] != int8Of(x, scale) {
				t.Fatalf("group %d: %v is %d", i, x, codes[i*16+j])
			}
		}
	}
	exponents := make([]uint8, callTokens*2)
	apply(LayoutBSHD, &Scale{E8M0: exponents, Computed: true, PowerOfTwo: true})
	before := slices.Clone(codes)
	apply(LayoutBSHD, &Scale{E8M0: exponents})
	if !slices.Equal(codes, before) {
		t.Error("scales that are given back give other codes")
	}
	ofHeads := []float32{0.5, 0.01}
	apply(LayoutBSHD, &Scale{Data: ofHeads, Strides: &Strides{Head: 1}})
	for i, x := range want {
		if codes[i] != int8Of(x, ofHeads[i/callDim%2]) {
			t.Fatalf("%v is %d", x, codes[i])
		}
	}
}

// everything is a call that has all that one may have, and its memory.
type everything struct {
	q, k, v, rest     []float32
	qOut              []F8E4M3
	qScales           []float32
	restOut, vOut     []BFloat16
	keys, values      []int8
	keyScales, vScale []float32
}

func newEverything(seed uint64) *everything {
	r := rand.New(rand.NewPCG(seed, 1))
	return &everything{
		q: random[float32](r, callTokens*4*callDim), k: random[float32](r, callTokens*callDim),
		v: random[float32](r, callTokens*latent), rest: random[float32](r, callTokens*4*latent),
		qOut: make([]F8E4M3, callTokens*4*callDim), qScales: make([]float32, callTokens*4),
		restOut: make([]BFloat16, callTokens*4*latent), vOut: make([]BFloat16, callTokens*latent),
		keys: slices.Repeat([]int8{99}, 8*callDim), values: slices.Repeat([]int8{99}, 8*latent),
		keyScales: make([]float32, 8), vScale: []float32{0.01 + float32(seed)/100},
	}
}

var everySlot = []int32{3, 0, 7, -1, 4}

func everyStep() Step {
	step := callStep()
	step.Slots = MappedSlots(everySlot)
	return step
}

func (e *everything) call() Call {
	wide := func(t AnyTensor) AnyTensor { return t.WithHeadDim(latent) }
	return Call{
		Q:    BSHD(e.q, 4).Any(),
		QOut: BSHD(e.qOut, 4).Any().WithScale(&Scale{Data: e.qScales, Computed: true}),
		K:    BSHD(e.k, 1).Any(), V: wide(BSHD(e.v, 1).Any()), VOut: wide(BSHD(e.vOut, 1).Any()),
		Rest: wide(BSHD(e.rest, 4).Any()), RestOut: wide(BSHD(e.restOut, 4).Any()),
		Cache: &Cache{Pages: 2, PageSize: 4,
			K: NHD(e.keys, 1).Any().WithScale(&Scale{Data: e.keyScales, Computed: true}),
			V: wide(NHD(e.values, 1).Any().WithScale(&Scale{Data: e.vScale, Strides: &Strides{}}))},
	}
}

func (e *everything) layer() Layer {
	return Layer{Q: ArrayOf(e.q), QOut: ArrayOf(e.qOut), QOutScales: ArrayOf(e.qScales), K: ArrayOf(e.k), V: ArrayOf(e.v),
		VOut: ArrayOf(e.vOut), Rest: ArrayOf(e.rest), RestOut: ArrayOf(e.restOut), CacheK: ArrayOf(e.keys),
		CacheKScales: ArrayOf(e.keyScales), CacheV: ArrayOf(e.values), CacheVScales: ArrayOf(e.vScale)}
}

func described() Call {
	e := &everything{qScales: []float32{}, keyScales: []float32{}, vScale: []float32{}}
	return e.call()
}

func TestACallMayHaveEverything(t *testing.T) {
	c, e := mustNew(t, plain(callDim)), newEverything(1)
	if err := Apply(c, e.call(), everyStep()); err != nil {
		t.Fatal(err)
	}
	for i, x := range inFloat32(t, c, e.q, 4, callStep()) { // E4M3 has 3 bits behind the point
		code, scale := e.qOut[i], e.qScales[i/callDim]
		value := math.Ldexp(float64(code&7)/8+1, int(code>>3&15)-7)
		if code>>3&15 == 0 {
			value = float64(code&7) / 512
		}
		if code&0x80 != 0 {
			value = -value
		}
		if off := math.Abs(value*float64(scale) - float64(x)); off > math.Abs(float64(x))/16+float64(scale)/1024 {
			t.Fatalf("%v is %#x, times %v", x, code, scale)
		}
	}
	for i, x := range e.rest {
		if e.restOut[i] != BFloat16FromFloat32(x) {
			t.Fatalf("rest: %v is %v", x, e.restOut[i].Float32())
		}
	}
	for i, x := range e.v {
		if e.vOut[i] != BFloat16FromFloat32(x) {
			t.Fatalf("v: %v is %v", x, e.vOut[i].Float32())
		}
	}
	keys, values := slices.Repeat([]int8{99}, 8*callDim), slices.Repeat([]int8{99}, 8*latent)
	turned := inFloat32(t, c, e.k, 1, callStep())
	for token, slot := range everySlot {
		if slot < 0 {
			continue
		}
		head := turned[token*callDim : (token+1)*callDim]
		for i, x := range head {
			keys[int(slot)*callDim+i] = int8Of(x, computedScale(head))
		}
		for i, x := range e.v[token*latent : (token+1)*latent] {
			values[int(slot)*latent+i] = int8Of(x, e.vScale[0])
		}
		if e.keyScales[slot] != computedScale(head) {
			t.Errorf("the scale of slot %d is %v", slot, e.keyScales[slot])
		}
	}
	if !slices.Equal(e.keys, keys) || !slices.Equal(e.values, values) {
		t.Error("the cache has other codes")
	}
}

func TestAPreparedCallHasTheBitsOfOneCall(t *testing.T) {
	c := mustNew(t, plain(callDim))
	call, err := PrepareCall(c, described(), everyStep())
	if err != nil {
		t.Fatal(err)
	}
	defer call.Close()
	for layer := range uint64(3) {
		once, prepared := newEverything(layer), newEverything(layer)
		if err := Apply(c, once.call(), everyStep()); err != nil {
			t.Fatal(err)
		}
		if err := call.Apply(prepared.layer()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(once.qOut, prepared.qOut) || !slices.Equal(once.qScales, prepared.qScales) ||
			!slices.Equal(once.restOut, prepared.restOut) || !slices.Equal(once.vOut, prepared.vOut) ||
			!slices.Equal(once.keys, prepared.keys) || !slices.Equal(once.keyScales, prepared.keyScales) ||
			!slices.Equal(once.values, prepared.values) {
			t.Errorf("layer %d has other bits", layer)
		}
	}
	if err := call.Close(); err != nil {
		t.Fatal(err)
	}
	if err := call.Apply(newEverything(1).layer()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestLayersThatDoNotFit(t *testing.T) {
	c := mustNew(t, plain(callDim))
	call, err := PrepareCall(c, described(), everyStep())
	if err != nil {
		t.Fatal(err)
	}
	defer call.Close()
	e := newEverything(1)
	for words, change := range map[string]func(*Layer){
		"Q has 0 elements, and the prepared call needs 640": func(l *Layer) { l.Q = Array{} },
		"KOut (2 elements) must be nil":                     func(l *Layer) { l.KOut = ArrayOf(make([]float32, 2)) },
		"CacheKScales has 3 elements, and the prepared call needs 8": func(l *Layer) {
			l.CacheKScales = ArrayOf(e.keyScales[:3])
		},
		"CacheKScales has elements of DTypeE8M0, and the prepared call needs DTypeF32": func(l *Layer) {
			l.CacheKScales = ArrayOf(make([]uint8, 8))
		},
		"CacheVScales has 0 elements": func(l *Layer) { l.CacheVScales = Array{} },
		"K has elements of DTypeBF16": func(l *Layer) { l.K = ArrayOf(make([]BFloat16, len(e.k))) },
	} {
		layer := e.layer()
		change(&layer)
		refused(t, call.Apply(layer), words)
	}
	if slices.ContainsFunc(e.keys, func(code int8) bool { return code != 99 }) {
		t.Error("a call that was refused has written")
	}
	forgotten, err := PrepareCall(c, Call{Q: BSHD[float32](nil, 1).Any()}, Step{Tokens: callTokens, Positions: Offset(0)})
	if err != nil {
		t.Fatal(err)
	}
	defer forgotten.Close()
	refused(t, forgotten.Apply(Layer{Q: ArrayOf(e.k)}), "rope.PreparedCall.Apply: Step.Batch (0) is required")
	filled := Call{K: BSHD(e.k, 1).Any()}
	_, err = PrepareCall(c, filled, callStep())
	refused(t, err, "k (160 elements) must be nil")
}

func TestCallsThatDoNotFit(t *testing.T) {
	c, x := mustNew(t, plain(callDim)), make([]float32, callTokens*callDim)
	one, codes := BSHD(x, 1).Any(), BSHD(make([]int8, len(x)), 1).Any()
	scaled := func(s Scale) Call { return Call{Q: one, QOut: codes.WithScale(&s)} }
	for words, call := range map[string]Call{
		"qOut.Scale (nil) is required":                       {Q: one, QOut: codes},
		"q has a scale, which is for outputs":                {Q: one.WithScale(&Scale{Value: 1})},
		"q has a head_dim (48), which is for v":              {Q: one.WithHeadDim(48)},
		"v does not turn, so it has no Span":                 {Q: one, V: Tensor[float32]{Data: x, Heads: 1, Span: true}.Any()},
		"Step.Slots and Call.Cache go together":              {Q: one, Cache: &Cache{}},
		"qOut.Scale.Data has 3 scales, and must have [batch": scaled(Scale{Data: x[:3], Computed: true}),
		"[1, 5, 1, 1], by strides":                           scaled(Scale{Data: x[:3], Strides: &Strides{Token: 1}}),
		"qOut.Scale.Strides must be nil":                     scaled(Scale{Value: 1, Strides: &Strides{}}),
		"Strides.Head (0, 0, 0) let computed scales":         scaled(Scale{Data: x[:3], Computed: true, Strides: &Strides{}}),
		"v":    {Q: one, V: one},
		"rest": {Q: one, Rest: one},
	} {
		refused(t, Apply(c, call, callStep()), words)
	}
}

func TestGroupsShareThePositionsOfTheirRow(t *testing.T) {
	c, r := mustNew(t, plain(callDim)), rand.New(rand.NewPCG(5, 6))
	const groups, batch = 3, 2
	x := random[float32](r, batch*groups*callTokens*callDim)
	ids, every := make([]int64, batch*callTokens), []int64(nil)
	for i := range ids {
		ids[i] = int64(i * i)
	}
	for row := range batch {
		every = append(every, slices.Repeat(ids[row*callTokens:(row+1)*callTokens], groups)...)
	}
	turn := func(positions Positions, repeat int) ([]float32, error) {
		y := slices.Clone(x)
		step := Step{Batch: batch * groups, Tokens: callTokens, Positions: positions, BatchRepeat: repeat}
		return y, ApplyQK(c, BSHD(y, 1), Tensor[float32]{}, step)
	}
	// back has the gradients through a norm, of heads that were repeated, and in parts of its weight.
	grad, weight := random[float32](r, 2*len(x)), random[float32](r, callDim)
	back := func(positions Positions, repeat int) (out, parts []float32) {
		out, parts = make([]float32, len(x)), make([]float32, 4*callDim)
		norm := &Norm{Kind: NormKindRMS, Eps: 1e-5, Weight: ArrayOf(weight), X: BSHD(x, 1).Any(), GradParts: 4, WeightGrad: parts}
		step := Step{Batch: batch * groups, Tokens: callTokens, Positions: positions, BatchRepeat: repeat,
			Operation: OperationBackward, Norms: &Norms{K: norm}}
		if err := ApplyQKTo(c, Tensor[float32]{}, BSHD(out, 1), Tensor[float32]{}, BSHD(grad, 2), step); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(out, 0) || slices.Contains(parts, 0) {
			t.Error("something was not written")
		}
		return out, parts
	}
	offsets, everyOffset := []int64{5, 900}, []int64{5, 5, 5, 900, 900, 900}
	for _, test := range [][2]Positions{{BatchTokenIDs(ids), BatchTokenIDs(every)}, {SeqOffsets(offsets), SeqOffsets(everyOffset)}} {
		out, parts := back(test[0], groups)
		wantOut, wantParts := back(test[1], 0)
		if !slices.Equal(out, wantOut) || !slices.Equal(parts, wantParts) {
			t.Error("gradients of groups have other positions")
		}
	}
	got, err := turn(BatchTokenIDs(ids), groups)
	if err != nil {
		t.Fatal(err)
	}
	want, err := turn(BatchTokenIDs(every), 0)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Error("groups have other positions")
	}
	_, err = turn(Offset(0), 4)
	refused(t, err, "BatchRepeat (4) must be 0 or a divisor of batch (6)")
	_, err = turn(BatchTokenIDs(every), groups)
	refused(t, err, "positions (30 entries)")
}

// What is said of a tensor that a call does not have, or of one that turns, is an error.
func TestWhatNoTensorHasIsRefused(t *testing.T) {
	c := mustNew(t, plain(callDim))
	q := make([]float32, callTokens*callDim)
	whole, weight := BSHD(q, 1), make([]float32, callDim)
	spans := whole
	spans.Span = true
	norm := Norm{Kind: NormKindRMS, Eps: 1e-6, Weight: ArrayOf(weight), X: spans.Any(), GradParts: 1,
		WeightGrad: make([]float32, callDim), Rounding: NormRoundingRounded}
	normed := callStep()
	normed.Operation, normed.Norms = OperationBackward, &Norms{Q: &norm}
	for name, err := range map[string]error{
		"qOut": Apply(c, Call{Q: whole.Any(), QOut: AnyTensor{}.WithScale(&Scale{Value: 1})}, callStep()),
		"v":    Apply(c, Call{Q: whole.Any(), V: AnyTensor{}.WithHeadDim(8)}, callStep()),
		"X":    Apply(c, Call{Q: whole.Any()}, normed),
	} {
		if err == nil || !strings.Contains(err.Error(), name+" ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	cache := KVCache[float32, float32]{K: NHD(q, 1), V: NHD(slices.Clone(q), 1), Pages: 1, PageSize: callTokens}
	cache.V.Span = true
	step := Step{Batch: 1, Tokens: 1, Positions: TokenIDs([]int64{3}), Operation: OperationShift, Slots: MappedSlots([]int64{0})}
	if MoveSlots(c, cache, step) == nil {
		t.Error("v with a Span moved")
	}
}
