package rope

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const normDim, normTokens = 64, 5

func randomNorm[W Element](r *rand.Rand, heads int) (*Norm, []W, []W) {
	norm := &Norm{Kind: NormKind(1 + r.IntN(5)), Eps: 1e-5, PerHead: r.IntN(2) == 1, Rounding: NormRoundingRounded}
	if r.IntN(2) == 1 {
		norm.Span = NormSpanAllHeads
	}
	rows := 1
	if norm.PerHead || norm.Span == NormSpanAllHeads {
		rows = heads
	}
	weight, bias := random[W](r, rows*normDim), random[W](r, rows*normDim)
	if norm.Kind != NormKindRMSPlain {
		norm.Weight = ArrayOf(weight)
	} else {
		norm.PerHead = false
	}
	if norm.Kind == NormKindLayerBias {
		norm.Bias = ArrayOf(bias)
	}
	return norm, weight, bias
}

// exactNorm norms the heads of one token.
func exactNorm[W Element](n *Norm, weight, bias []W, token []float64) {
	width := normDim
	if n.Span == NormSpanAllHeads {
		width = len(token)
	}
	for first := 0; first < len(token); first += width {
		part, mean, square := token[first:first+width], 0.0, 0.0
		for _, x := range part {
			mean += x / float64(width)
		}
		if n.Kind < NormKindLayer {
			mean = 0
		}
		for _, x := range part {
			square += (x - mean) * (x - mean) / float64(width)
		}
		for i, x := range part {
			c := (first + i) % len(weight)
			y := (x - mean) / math.Sqrt(square+n.Eps)
			switch n.Kind {
			case NormKindRMSPlain:
			case NormKindRMSOnePlus:
				y *= 1 + toFloat(weight[c])
			case NormKindLayerBias:
				y = y*toFloat(weight[c]) + toFloat(bias[c])
			default:
				y *= toFloat(weight[c])
			}
			part[i] = y
		}
	}
}

// A norm alone has the values of float64, with the rotation it has the bits of two calls, and slots have
// those of outputs.
func testNorms[T, W Element](t *testing.T, r *rand.Rand, ulp float64) {
	turns, normsAlone := mustNew(t, plain(normDim)), mustNew(t, Config{HeadDim: normDim, Scaling: ScalingNope})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		qNorm, qWeight, qBias := randomNorm[W](r, 4)
		kNorm, kWeight, kBias := randomNorm[W](r, 2)
		vNorm, _, _ := randomNorm[W](r, 2)
		q, k := random[T](r, normTokens*4*normDim), random[T](r, normTokens*2*normDim)
		v := random[T](r, len(k))
		step := Step{Batch: 1, Tokens: normTokens, Positions: Offset(11)}
		normed := step
		normed.Norms = &Norms{Q: qNorm, K: kNorm}
		twoQ, twoK := slices.Clone(q), slices.Clone(k)
		must(ApplyQK(normsAlone, BSHD(twoQ, 4), BSHD(twoK, 2), normed))
		for _, test := range []struct {
			norm         *Norm
			weight, bias []W
			x, y         []T
			heads        int
		}{{qNorm, qWeight, qBias, q, twoQ, 4}, {kNorm, kWeight, kBias, k, twoK, 2}} {
			row := test.heads * normDim
			for first := 0; first < len(test.x); first += row {
				token := make([]float64, row)
				for i := range token {
					token[i] = toFloat(test.x[first+i])
				}
				exactNorm(test.norm, test.weight, test.bias, token)
				for i, want := range token {
					if got := toFloat(test.y[first+i]); math.Abs(got-want) > ulp*(math.Abs(want)+2)+1e-5 {
						t.Fatalf("%v of %v: %v, want %v", test.norm.Kind, test.x[first+i], got, want)
					}
				}
			}
		}
		must(ApplyQK(turns, BSHD(twoQ, 4), BSHD(twoK, 2), step))
		oneQ, oneK := slices.Clone(q), make([]T, len(k))
		must(ApplyQKTo(turns, Tensor[T]{}, BSHD(oneK, 2), BSHD(oneQ, 4), BSHD(k, 2), normed))
		if !slices.Equal(oneQ, twoQ) || !slices.Equal(oneK, twoK) {
			t.Fatalf("%+v and %+v: one call differs from two", qNorm, kNorm)
		}

		normedV := slices.Clone(v)
		alone := step
		alone.Norms = &Norms{K: vNorm}
		must(ApplyQK(normsAlone, Tensor[T]{}, BSHD(normedV, 2), alone))
		normed.Norms, normed.Slots = &Norms{Q: qNorm, K: kNorm, V: vNorm}, LinearSlots([]int32{0})
		cache := KVCache[T, T]{K: NHD(make([]T, len(k)), 2), V: NHD(make([]T, len(v)), 2), Pages: 1, PageSize: normTokens}
		must(Append(turns, BSHD(q, 4), BSHD(k, 2), BSHD(v, 2), cache, normed))
		if !slices.Equal(q, twoQ) || !slices.Equal(cache.K.Data, twoK) || !slices.Equal(cache.V.Data, normedV) {
			t.Fatalf("%+v, %+v and %+v: a cache has other bits", qNorm, kNorm, vNorm)
		}
	}
}

func TestNormsAreTwoCallsAndWeightsArrive(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	testNorms[float32, BFloat16](t, r, 1e-6)
	testNorms[BFloat16, BFloat16](t, r, 1.0/128)
	testNorms[Float16, float32](t, r, 1.0/1024)
}

func TestRootsOrderAndRoundingArrive(t *testing.T) {
	r, c := rand.New(rand.NewPCG(7, 8)), mustNew(t, plain(normDim))
	weight, q := random[float32](r, normDim), random[float32](r, normTokens*normDim)
	rstd := make([]float32, normTokens)
	for i := range rstd {
		sum := float32(0)
		for _, x := range q[i*normDim : (i+1)*normDim] {
			sum += x * x
		}
		rstd[i] = float32(1 / math.Sqrt(float64(sum/normDim)+1e-5))
	}
	apply := func(norm Norm) []float32 {
		x := slices.Clone(q)
		norm.Kind, norm.Weight = NormKindRMS, ArrayOf(weight)
		step := Step{Batch: 1, Tokens: normTokens, Positions: Offset(11), Norms: &Norms{Q: &norm}}
		if err := ApplyQK(c, BSHD(x, 1), Tensor[float32]{}, step); err != nil {
			t.Fatal(err)
		}
		return x
	}
	worst := func(x, y []float32) (most float64) {
		for i := range x {
			most = max(most, math.Abs(float64(x[i]-y[i])))
		}
		return most
	}
	own := apply(Norm{Eps: 1e-5})
	if given := apply(Norm{Span: NormSpanGiven, Rstd: rstd}); worst(own, given) > 1e-5 {
		t.Errorf("roots that are given: off by %v", worst(own, given))
	}
	if after := apply(Norm{Eps: 1e-5, Order: NormOrderAfter}); worst(own, after) < 0.1 {
		t.Error("a norm behind the rotation is that before it")
	}
	var rounded [3][]BFloat16
	for i, how := range []NormRounding{NormRoundingFloat32, NormRoundingRounded, NormRoundingEager} {
		for _, x := range q {
			rounded[i] = append(rounded[i], BFloat16FromFloat32(x))
		}
		norm := &Norm{Kind: NormKindRMS, Eps: 1e-5, Weight: ArrayOf(weight), Rounding: how}
		step := Step{Batch: 1, Tokens: normTokens, Positions: Offset(11), Norms: &Norms{Q: norm}}
		if err := ApplyQK(c, BSHD(rounded[i], 1), Tensor[float32]{}, step); err != nil {
			t.Fatal(err)
		}
	}
	if slices.Equal(rounded[0], rounded[1]) || slices.Equal(rounded[1], rounded[2]) {
		t.Error("roundings do not differ")
	}
}

func TestNormsThatDoNotFitAreRefused(t *testing.T) {
	c := mustNew(t, plain(normDim))
	weight := make([]float32, 2*normDim)
	rms := func(change func(*Norm)) *Norms {
		norm := &Norm{Kind: NormKindRMS, Eps: 1e-5, Weight: ArrayOf(weight[:normDim])}
		change(norm)
		return &Norms{Q: norm}
	}
	for _, test := range []struct {
		norms *Norms
		want  string
	}{
		{rms(func(n *Norm) { n.Weight = ArrayOf(weight) }), "Norms.Q.Weight has 128 elements, and must have 1 row of 64 channels"},
		{rms(func(n *Norm) { n.PerHead = true }), "Norms.Q.Weight has 64 elements, and must have 2 rows of 64"},
		{rms(func(n *Norm) { n.Span = NormSpanAllHeads }), "Norms.Q.Weight has 64 elements, and must have 2 rows of 64"},
		{rms(func(n *Norm) { n.Span, n.Rstd = NormSpanGiven, weight[:3] }), "Norms.Q.Weight has 64 elements, and must have 2 rows"},
		{rms(func(n *Norm) { n.Kind, n.Bias = NormKindLayerBias, ArrayOf(weight) }), "Norms.Q.Bias has 128 elements"},
		{rms(func(n *Norm) { n.Bias = ArrayOf(make([]BFloat16, normDim)) }), "Norms.Q.Bias (DTypeBF16) must have the element type of Weight (DTypeF32)"},
		{rms(func(n *Norm) { n.Rstd = weight }), "Norms.Q.Rstd has 128 elements, and must have one for each of 1 * 3 tokens"},
		{rms(func(n *Norm) { n.X = AnyTensor{}.WithHeadDim(normDim) }), "Norms.Q.X has a scale or a head_dim, and no tensor"},
		{rms(func(n *Norm) { n.Eps = 0 }), "Norms.Q.Eps (0) is required"},
		{rms(func(n *Norm) { n.Kind = 0 }), "Norms.Q.Kind (0) is required"},
		{rms(func(n *Norm) { n.Weight = Array{} }), "Norms.Q.Weight"},
		{&Norms{K: &Norm{Kind: NormKindRMSPlain, Eps: 1}}, "Norms.K is set, but k is absent"},
		{&Norms{V: &Norm{Kind: NormKindRMSPlain, Eps: 1}}, "Norms.V is set, but v is absent"},
	} {
		q := slices.Repeat([]float32{1}, 3*2*normDim)
		step := Step{Batch: 1, Tokens: 3, Positions: Offset(0), Norms: test.norms}
		err := ApplyQK(c, BSHD(q, 2), Tensor[float32]{}, step)
		if err == nil || !strings.Contains(err.Error(), "rope.ApplyQK: "+test.want) {
			t.Errorf("%v, want %s", err, test.want)
		}
		if slices.ContainsFunc(q, func(x float32) bool { return x != 1 }) {
			t.Errorf("%s: q has changed", test.want)
		}
	}
	step := Step{Batch: 1, Tokens: 3, Positions: Offset(0), Norms: rms(func(*Norm) {})}
	if _, err := Prepare(c, BSHD[float32](nil, 2), Tensor[float32]{}, step); err == nil ||
		!strings.Contains(err.Error(), "Step.Norms must be nil") {
		t.Errorf("prepared: %v", err)
	}
	stores, head := step, BSHD[float32](nil, 2)
	stores.Slots = MappedSlots([]int32{0, 1, 2})
	cache := KVCache[float32, float32]{K: NHD[float32](nil, 2), V: NHD[float32](nil, 2), Pages: 1, PageSize: 3}
	if _, err := PrepareAppend(c, head, head, head, cache, stores); err == nil ||
		!strings.Contains(err.Error(), "rope.PrepareAppend: Step.Norms must be nil: PrepareCall prepares calls with norms") {
		t.Errorf("a prepared append: %v", err)
	}
	if _, err := PrepareAppendTo(c, head, head, head, head, head, head, cache, stores); err == nil ||
		!strings.Contains(err.Error(), "rope.PrepareAppendTo: Step.Norms must be nil: PrepareCall prepares calls with norms") {
		t.Errorf("a prepared append with outputs: %v", err)
	}
	before, k := Offset(7), make([]float32, 3*2*normDim)
	step.Operation, step.From = OperationRerotate, &before
	err := ApplyQK(c, BSHD(k, 2), Tensor[float32]{}, step)
	if err == nil || !strings.Contains(err.Error(), "keys that move are not normed") {
		t.Errorf("rerotated: %v", err)
	}
	step.Slots = MappedSlots([]int32{0, 1, 2})
	err = MoveSlots(c, KVCache[float32, float32]{K: NHD(k, 2), Pages: 1, PageSize: 3}, step)
	if err == nil || !strings.Contains(err.Error(), "keys that move are not normed") {
		t.Errorf("moved: %v", err)
	}
}

// preparedNorm is a norm without arrays, which PrepareCall takes.
func preparedNorm(n *Norm) *Norm {
	if n == nil {
		return nil
	}
	described := *n
	described.Weight.len, described.Bias, described.Rstd = 0, Array{}, nil
	return &described
}

// lend gives a layer what a norm reads.
func lend(n *Norm, weight, bias, rstd *Array) {
	if n != nil {
		*weight, *bias, *rstd = n.Weight, n.Bias, ArrayOf(n.Rstd)
	}
}

func TestPreparedCallsWithNorms(t *testing.T) {
	const heads, pages, pageSize = 3, 2, 4
	c := mustNew(t, plain(normDim))
	for seed := uint64(0); seed < 60; seed++ {
		r := rand.New(rand.NewPCG(seed, 7))
		norm := func() *Norm {
			switch r.IntN(4) {
			case 0:
				return nil
			case 1:
				rstd := make([]float32, normTokens)
				for i := range rstd {
					rstd[i] = 0.25 + r.Float32()
				}
				return &Norm{Kind: NormKindRMS, Span: NormSpanGiven, Weight: ArrayOf(random[float32](r, heads*normDim)),
					PerHead: true, Rstd: rstd}
			}
			n, _, _ := randomNorm[BFloat16](r, heads)
			return n
		}
		norms := Norms{Q: norm(), K: norm(), V: norm()}
		type memory struct{ q, k, v, keys, values []BFloat16 }
		first := memory{random[BFloat16](r, normTokens*heads*normDim), random[BFloat16](r, normTokens*heads*normDim),
			random[BFloat16](r, normTokens*heads*normDim), make([]BFloat16, pages*pageSize*heads*normDim),
			make([]BFloat16, pages*pageSize*heads*normDim)}
		second := memory{slices.Clone(first.q), first.k, first.v, slices.Clone(first.keys), slices.Clone(first.values)}
		call := func(m memory) Call {
			return Call{Q: BSHD(m.q, heads).Any(), K: BSHD(m.k, heads).Any(), V: BSHD(m.v, heads).Any(),
				Cache: &Cache{K: NHD(m.keys, heads).Any(), V: NHD(m.values, heads).Any(), Pages: pages, PageSize: pageSize}}
		}
		step := Step{Batch: 1, Tokens: normTokens, Positions: Offset(9), Slots: MappedSlots([]int64{3, 0, 7, -1, 5}), Norms: &norms}
		if err := Apply(c, call(first), step); err != nil {
			t.Fatal(seed, err)
		}
		step.Norms = &Norms{Q: preparedNorm(norms.Q), K: preparedNorm(norms.K), V: preparedNorm(norms.V)}
		prepared, err := PrepareCall(c, call(memory{}), step)
		if err != nil {
			t.Fatal(seed, err)
		}
		layer := Layer{Q: ArrayOf(second.q), K: ArrayOf(second.k), V: ArrayOf(second.v), CacheK: ArrayOf(second.keys),
			CacheV: ArrayOf(second.values)}
		lend(norms.Q, &layer.QNormWeight, &layer.QNormBias, &layer.QNormRstd)
		lend(norms.K, &layer.KNormWeight, &layer.KNormBias, &layer.KNormRstd)
		lend(norms.V, &layer.VNormWeight, &layer.VNormBias, &layer.VNormRstd)
		if err := prepared.Apply(layer); err != nil {
			t.Fatal(seed, err)
		}
		if !slices.Equal(first.q, second.q) || !slices.Equal(first.keys, second.keys) ||
			!slices.Equal(first.values, second.values) {
			t.Fatal(seed, "a prepared call has other bits")
		}
		if err := prepared.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNormsOfPreparedCallsThatDoNotFit(t *testing.T) {
	c := mustNew(t, plain(normDim))
	q, weight := slices.Repeat([]float32{1}, 2*normDim), make([]float32, normDim)
	call := Call{Q: BSHD[float32](nil, 2).Any()}
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(0)}
	for words, norm := range map[string]*Norm{
		"Norms.Q has arrays, which must be empty": {Kind: NormKindRMS, Eps: 1e-6, Weight: ArrayOf(weight)},
		"Norms.Q must have no X, WeightGrad, BiasGrad and GradParts": {Kind: NormKindRMS, Eps: 1e-6,
			Weight: ArrayOf(weight[:0]), GradParts: 1},
		"Norms.Q.Bias must be nil with NormKindRMS": {Kind: NormKindRMS, Eps: 1e-6, Weight: ArrayOf(weight[:0]),
			Bias: ArrayOf(weight[:0])},
		"Norms.Q.Bias must be nil with NormKindRMSPlain": {Kind: NormKindRMSPlain, Eps: 1e-6, Bias: ArrayOf([]float32(nil))},
		"Norms.Q.Rstd must be nil with another span than NormSpanGiven": {Kind: NormKindRMS, Eps: 1e-6,
			Weight: ArrayOf(weight[:0]), Rstd: []float32{}},
		"Norms.Q.X has a scale or a head_dim, and no tensor": {Kind: NormKindRMS, Eps: 1e-6, Weight: ArrayOf(weight[:0]),
			X: AnyTensor{}.WithHeadDim(normDim)},
		"Norms.Q.Kind (0) is required":         {Eps: 1e-6, Weight: ArrayOf(weight[:0]), Bias: ArrayOf(weight[:0])},
		"Norms.Q.Weight.DType (0) is required": {Kind: NormKindRMS, Eps: 1e-6},
		"Norms.Q.Bias (DTypeBF16) must have the element type of Weight (DTypeF32)": {Kind: NormKindLayerBias, Eps: 1e-6,
			Weight: ArrayOf(weight[:0]), Bias: ArrayOf([]BFloat16{})},
	} {
		step.Norms = &Norms{Q: norm}
		_, err := PrepareCall(c, call, step)
		refused(t, err, words)
	}
	step.Norms = &Norms{Q: &Norm{Kind: NormKindRMS, Eps: 1e-6, Weight: ArrayOf(weight[:0])}}
	backward := step
	backward.Operation = OperationBackward
	if _, err := PrepareCall(c, call, backward); err == nil ||
		!strings.Contains(err.Error(), "Norms.Q must be nil with OperationBackward in a prepared call") {
		t.Error(err)
	}
	prepared, err := PrepareCall(c, call, step)
	if err != nil {
		t.Fatal(err)
	}
	defer prepared.Close()
	for words, layer := range map[string]Layer{
		"QNormWeight has 0 elements, and the prepared call needs 64": {Q: ArrayOf(q)},
		"QNormWeight has elements of DTypeBF16": {Q: ArrayOf(q),
			QNormWeight: ArrayOf(make([]BFloat16, normDim))},
		"QNormBias (64 elements) must be nil": {Q: ArrayOf(q), QNormWeight: ArrayOf(weight), QNormBias: ArrayOf(weight)},
		"KNormWeight (64 elements) must be nil": {Q: ArrayOf(q), QNormWeight: ArrayOf(weight),
			KNormWeight: ArrayOf(weight)},
	} {
		refused(t, prepared.Apply(layer), words)
	}
	if slices.ContainsFunc(q, func(x float32) bool { return x != 1 }) {
		t.Error("a call that was refused has written")
	}
}

// A layer of no tokens, or of no batch rows, may leave out weights, pages and scales.
func TestPreparedCallsOfNoTokensNeedNoArrays(t *testing.T) {
	c := mustNew(t, plain(normDim))
	head, weight, scale := BSHD[float32](nil, 1).Any(), make([]float32, normDim), &Scale{Data: []float32{}, Computed: true}
	for _, step := range []Step{{Batch: 1}, {Tokens: 1}} {
		step.Positions, step.Slots = Offset(0), MappedSlots([]int32{})
		step.Norms = &Norms{Q: &Norm{Kind: NormKindRMS, Eps: 1e-6, Weight: ArrayOf(weight[:0])}}
		call, err := PrepareCall(c, Call{Q: head, K: head,
			Cache: &Cache{K: NHD[int8](nil, 1).Any().WithScale(scale), Pages: 1, PageSize: 2}}, step)
		if err != nil {
			t.Fatal(err)
		}
		defer call.Close()
		for _, layer := range []Layer{{}, {Q: ArrayOf([]float32{}), CacheK: ArrayOf([]int8{}), QNormWeight: ArrayOf(weight)},
			{CacheK: ArrayOf(make([]int8, 2*normDim)), CacheKScales: ArrayOf(make([]float32, 2))}} {
			if err := call.Apply(layer); err != nil {
				t.Error(err)
			}
		}
		refused(t, call.Apply(Layer{QNormWeight: ArrayOf(weight[1:])}), "QNormWeight has 63 elements")
	}
}

// codedPages are keys and values in 8 bits with scales that a call computes, in pages.
type codedPages struct {
	keys        []F8E4M3
	keyScales   []float32
	values      []int8
	valueScales []uint8
}

func (p codedPages) cache(pages, pageSize, heads int) *Cache {
	return &Cache{Pages: pages, PageSize: pageSize,
		K: NHD(p.keys, heads).Any().WithScale(&Scale{Data: p.keyScales, Computed: true}),
		V: HND(p.values, heads).Any().WithScale(&Scale{E8M0: p.valueScales, Computed: true, PowerOfTwo: true, Group: 16})}
}

// The step of an engine whose cache has 8 bits: sequences of different lengths, norms of q, k and v, and page tables,
// once prepared for all layers and once not.
func TestPreparedNormsFillPagesOfCodesWithTheBitsOfApply(t *testing.T) {
	const qHeads, heads, pages, pageSize, tokens = 4, 2, 6, 4, 6
	c, r := mustNew(t, plain(normDim)), rand.New(rand.NewPCG(31, 8))
	lengths := []int32{3, 0, 6}
	step := Step{Batch: 1, Tokens: tokens, Positions: SeqOffsets(lengths), CuSeqlens: []int32{0, 2, 5, 6},
		Slots: PagedSlots([]int32{4, 2, -1, 5, 0, 3}, 2, lengths)} // the first page of the second sequence is nowhere
	newPages := func() codedPages {
		const all = pages * pageSize * heads
		return codedPages{slices.Repeat([]F8E4M3{0x55}, all*normDim), slices.Repeat([]float32{-1}, all),
			slices.Repeat([]int8{99}, all*normDim), slices.Repeat([]uint8{9}, all*normDim/16)}
	}
	for _, span := range []NormSpan{0, NormSpanAllHeads} { // Qwen3's, and those of OLMo 2
		norms := func(q, k []BFloat16) *Norms {
			of := func(weight []BFloat16) *Norm {
				return &Norm{Kind: NormKindRMS, Eps: 1e-6, Weight: ArrayOf(weight), Span: span, Rounding: NormRoundingEager}
			}
			return &Norms{Q: of(q), K: of(k), V: &Norm{Kind: NormKindRMSPlain, Eps: 1e-6, Rounding: NormRoundingEager}}
		}
		call := func(q, k, v []BFloat16, memory codedPages) Call {
			return Call{Q: BSHD(q, qHeads).Any(), K: BSHD(k, heads).Any(), V: BSHD(v, heads).Any(),
				Cache: memory.cache(pages, pageSize, heads)}
		}
		described := step
		described.Norms = norms([]BFloat16{}, []BFloat16{})
		prepared, err := PrepareCall(c, call(nil, nil, nil, codedPages{keyScales: []float32{}, valueScales: []uint8{}}), described)
		if err != nil {
			t.Fatal(err)
		}
		defer prepared.Close()
		for layer := range 3 {
			q, k := random[BFloat16](r, tokens*qHeads*normDim), random[BFloat16](r, tokens*heads*normDim)
			v, wantQ := random[BFloat16](r, len(k)), slices.Clone(q)
			qRows, kRows := 1, 1
			if span == NormSpanAllHeads {
				qRows, kRows = qHeads, heads
			}
			qWeight, kWeight := random[BFloat16](r, qRows*normDim), random[BFloat16](r, kRows*normDim)
			want, got, once := newPages(), newPages(), step
			once.Norms = norms(qWeight, kWeight)
			if err := Apply(c, call(wantQ, k, v, want), once); err != nil {
				t.Fatal(err)
			}
			filled := 0
			for head := 0; head < len(want.keyScales); head += heads {
				if want.keyScales[head] >= 0 {
					filled++
				}
			}
			if filled != 3 {
				t.Errorf("%d slots were filled, want 3: those of the other sequences", filled)
			}
			err := prepared.Apply(Layer{Q: ArrayOf(q), K: ArrayOf(k), V: ArrayOf(v), CacheK: ArrayOf(got.keys),
				CacheKScales: ArrayOf(got.keyScales), CacheV: ArrayOf(got.values), CacheVScales: ArrayOf(got.valueScales),
				QNormWeight: ArrayOf(qWeight), KNormWeight: ArrayOf(kWeight)})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(q, wantQ) || !slices.Equal(got.keys, want.keys) || !slices.Equal(got.keyScales, want.keyScales) ||
				!slices.Equal(got.values, want.values) || !slices.Equal(got.valueScales, want.valueScales) {
				t.Error("layer", layer, "has other bits")
			}
		}
	}
}
