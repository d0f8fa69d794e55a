package rope

// The fuzzer of outputs and caches in 8 bits: slices, shapes, scales and slots at random, most of them right. A call
// that is refused has written nothing; one that is not has written the codes and scales of the definition, and nothing
// else; and a prepared call takes and refuses the same.
//
//	go test -fuzz FuzzCodes .

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestCodesOfAnyCall(t *testing.T) {
	fuzz := newCodesFuzzer(t)
	for seed := range uint64(2000) {
		fuzz.try(t, seed)
	}
	for _, kind := range []string{"Apply", "Append", "MoveSlots", "MoveBetween"} {
		if n := fuzz.taken[kind]; n[0] < 100 || n[1] < 100 {
			t.Errorf("%s: %d were refused and %d accepted: that tests little", kind, n[0], n[1])
		}
	}
}

func FuzzCodes(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { newCodesFuzzer(t).try(t, seed) })
}

type codesFuzzer struct {
	contexts map[int]*Context // by head_dim
	taken    map[string][2]int
}

func newCodesFuzzer(t *testing.T) *codesFuzzer {
	contexts := map[int]*Context{}
	for _, dim := range []int{32, 48, 64, 96} {
		contexts[dim] = mustNew(t, plain(dim))
	}
	return &codesFuzzer{contexts, map[string][2]int{}}
}

// judge counts a call, and checks that of what it was given what had to change has changed, and nothing else.
func (f *codesFuzzer) judge(t *testing.T, kind string, err error, memory ...checked) {
	t.Helper()
	n, accepted := f.taken[kind], 0
	if err == nil {
		accepted = 1
	}
	n[accepted]++
	f.taken[kind] = n
	for _, m := range memory {
		if what := m.differs(err == nil); what != "" {
			t.Fatalf("%s: %s; it returned %v", kind, what, err)
		}
	}
}

func (f *codesFuzzer) try(t *testing.T, seed uint64) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	r := rand.New(rand.NewPCG(seed, 7))
	switch r.IntN(5) {
	case 0:
		tryCodes[float32, int8, F8E5M2](f, t, r)
	case 1:
		tryCodes[float32, F8E4M3, Q80](f, t, r)
	case 2:
		tryCodes[BFloat16, F8E5M2, F8E4M3](f, t, r)
	case 3:
		tryCodes[Float16, Q80, Q80](f, t, r)
	default:
		tryCodes[BFloat16, Q80, int8](f, t, r)
	}
}

// tryCodes stores heads of type In as A in an output, and as B in a cache, from which they then move.
func tryCodes[In Element, A, B OutputElement](f *codesFuzzer, t *testing.T, r *rand.Rand) {
	dim := []int{32, 32, 64, 96, 48}[r.IntN(5)]
	c, batch, tokens, heads, pages, pageSize := f.contexts[dim], 1+r.IntN(2), 1+r.IntN(4), 1+r.IntN(3), 3, 1+r.IntN(4)
	x := make([]In, batch*tokens*heads*dim)
	for i := range x {
		x[i] = fromFloat[In](20*r.Float64() - 10)
	}
	step := Step{Batch: batch, Tokens: tokens, Positions: Offset(r.Int64N(5000))}
	turned, values := make([]float32, len(x)), make([]float32, len(x))
	exact := Call{Q: BSHD(x, heads).Any(), QOut: BSHD(turned, heads).Any(), Rest: BSHD(x, heads).Any(),
		RestOut: BSHD(values, heads).Any()}
	if err := Apply(c, exact, step); err != nil {
		t.Fatal(err)
	}
	out := newTarget[A](r, batch, tokens, heads, dim, BSHD[A](nil, 0), BHSD[A](nil, 0), SBHD[A](nil, 0))
	pagesOf := func() *target[B] { return newTarget[B](r, pages, pageSize, heads, dim, NHD[B](nil, 0), HND[B](nil, 0)) }
	keys, vals := pagesOf(), pagesOf()
	slots := someSlots(r, batch*tokens, pages*pageSize)
	for i := range batch * tokens {
		head := func(x []float32, h int) []float32 { return x[(i*heads+h)*dim:][:dim] }
		for h := range heads {
			out.store(i/tokens, i%tokens, h, head(turned, h))
			if i < len(slots) && slots[i] >= 0 {
				keys.store(int(slots[i])/pageSize, int(slots[i])%pageSize, h, head(turned, h))
				vals.store(int(slots[i])/pageSize, int(slots[i])%pageSize, h, head(values, h))
			}
		}
	}

	// The cache alone, by types.
	stored, none := step, BSHD[In](nil, 0)
	stored.Slots = MappedSlots(slots)
	cache := KVCache[B, B]{K: keys.tensor, KScale: keys.scale, V: vals.tensor, VScale: vals.scale, Pages: pages,
		PageSize: pageSize}
	err := Append(c, none, BSHD(x, heads), BSHD(x, heads), cache, stored)
	f.judge(t, "Append", err, keys, vals)
	moving := err == nil
	keys.restore()
	vals.restore()

	// The output as well, in one call and prepared.
	of := func(x AnyTensor) AnyTensor { // without its slices, as a prepared call is described
		x.Array = Array{dtype: x.dtype, bytes: x.bytes}
		if x.scale != nil && (x.scale.Data != nil || x.scale.E8M0 != nil) {
			scale := *x.scale
			scale.Data, scale.E8M0 = scale.Data[:0:0], scale.E8M0[:0:0]
			x.scale = &scale
		}
		return x
	}
	call := Call{Q: BSHD(x, heads).Any(), QOut: out.any(), K: BSHD(x, heads).Any(), V: BSHD(x, heads).Any(),
		Cache: &Cache{K: keys.any(), V: vals.any(), Pages: pages, PageSize: pageSize}}
	err = Apply(c, call, stored)
	f.judge(t, "Apply", err, out, keys, vals)
	out.restore()
	keys.restore()
	vals.restore()
	described := Call{Q: of(call.Q), QOut: of(call.QOut), K: of(call.K), V: of(call.V),
		Cache: &Cache{K: of(call.Cache.K), V: of(call.Cache.V), Pages: pages, PageSize: pageSize}}
	prepared, again := PrepareCall(c, described, stored)
	if again == nil {
		again = prepared.Apply(Layer{Q: call.Q.Array, QOut: call.QOut.Array, QOutScales: out.array(), K: call.K.Array,
			V: call.V.Array, CacheK: call.Cache.K.Array, CacheKScales: keys.array(), CacheV: call.Cache.V.Array,
			CacheVScales: vals.array()})
		prepared.Close()
	}
	f.judge(t, "PrepareCall", again, out, keys, vals)
	if (err == nil) != (again == nil) {
		t.Fatalf("Apply returned %v, and the prepared call %v", err, again)
	}
	if !moving {
		return
	}

	// Keys move within their cache, and to one of the other type.
	keys.settle()
	var from []int64
	for _, slot := range slots {
		if slot >= 0 {
			from = append(from, slot)
		}
	}
	to := someSlots(r, len(from), pages*pageSize)
	if r.IntN(3) == 0 {
		to = from
	}
	was := Offset(r.Int64N(5000))
	move := Step{Batch: 1, Tokens: len(from), Positions: Offset(5000 + r.Int64N(5000)), From: &was,
		Operation: OperationRerotate}
	var held []float32
	for _, slot := range from {
		for h := range heads {
			held = append(held, keys.load(int(slot)/pageSize, int(slot)%pageSize, h)...)
		}
	}
	held = inFloat32(t, c, held, heads, move)
	move.Source, move.Slots = MappedSlots(from), MappedSlots(to)
	other := newTarget[A](r, pages, pageSize, heads, dim, NHD[A](nil, 0), HND[A](nil, 0))
	storeAll := func(store func(outer, inner, h int, x []float32)) {
		for i, slot := range to[:min(len(to), len(from))] {
			for h := range heads {
				if slot >= 0 {
					store(int(slot)/pageSize, int(slot)%pageSize, h, held[(i*heads+h)*dim:][:dim])
				}
			}
		}
	}
	only := KVCache[B, B]{K: keys.tensor, KScale: keys.scale, Pages: pages, PageSize: pageSize}
	storeAll(other.store)
	err = MoveBetween(c, only, KVCache[A, A]{K: other.tensor, KScale: other.scale, Pages: pages, PageSize: pageSize}, move)
	f.judge(t, "MoveBetween", err, other, keys)
	storeAll(keys.store)
	f.judge(t, "MoveSlots", MoveSlots(c, only, move), keys)
}

// someSlots are different slots below n, now and then nowhere, too few, or one that does not exist.
func someSlots(r *rand.Rand, tokens, n int) (slots []int64) {
	all := r.Perm(n)
	for i := range tokens {
		switch {
		case i >= n || r.IntN(8) == 0:
			slots = append(slots, -1)
		default:
			slots = append(slots, int64(all[i]))
		}
	}
	if len(slots) > 0 && r.IntN(20) == 0 {
		slots[r.IntN(len(slots))] = int64(n + r.IntN(3))
	}
	if len(slots) > 0 && r.IntN(30) == 0 {
		slots = slots[1:]
	}
	return slots
}

// checked is memory of a call.
type checked interface{ differs(accepted bool) string }

const margin = 40 // elements of memory before and behind each slice

// image is an array between fences: what it held, what is in it now, and what a call must make of it.
type image[T any] struct{ before, now, want []T }

func newImage[T any](n int, value func() T) image[T] {
	i := image[T]{now: make([]T, n+2*margin)}
	for at := range i.now {
		i.now[at] = value()
	}
	i.before, i.want = slices.Clone(i.now), slices.Clone(i.now)
	return i
}

// inside is the slice; what is stored outside of it, by a call that must be refused, is ignored.
func (i *image[T]) inside() []T { return i.now[margin : len(i.now)-margin : len(i.now)-margin] }

func (i *image[T]) put(at int, x ...T) {
	if at >= 0 && at+len(x) <= len(i.inside()) {
		copy(i.want[margin+at:], x)
	}
}

// target is an output, or memory of a cache, of T.
type target[T OutputElement] struct {
	tensor            Tensor[T]
	scale             *Scale
	outer, inner, dim int // batch rows and tokens, or pages and slots; channels of a head
	strides           Strides
	codes             image[T]
	scales            image[float32]
	exponents         image[uint8]
}

func newTarget[T OutputElement](r *rand.Rand, outer, inner, heads, dim int, layouts ...Tensor[T]) *target[T] {
	t := &target[T]{outer: outer, inner: inner, dim: dim}
	each := dtypeOf[T]().channels()
	t.tensor = layouts[r.IntN(len(layouts))]
	t.tensor.Heads = heads
	n := outer * inner * heads * dim
	switch t.tensor.Layout {
	case LayoutBSHD, LayoutNHD:
		t.strides = Strides{Batch: inner * heads * dim, Token: heads * dim, Head: dim}
	case LayoutSBHD:
		t.strides = Strides{Batch: heads * dim, Token: outer * heads * dim, Head: dim}
	default:
		t.strides = Strides{Batch: heads * inner * dim, Token: dim, Head: inner * dim}
	}
	if r.IntN(2) == 0 {
		t.strides.Head = dim + each*r.IntN(3)
		t.strides.Token = heads*t.strides.Head + each*r.IntN(2)
		t.strides.Batch = inner*t.strides.Token + each*r.IntN(2)
		if r.IntN(10) == 0 {
			t.strides.Token += []int{1, -1, -dim, -t.strides.Token}[r.IntN(4)]
		}
		t.tensor.Layout, t.tensor.Strides = LayoutStrided, t.strides
		n = (outer-1)*t.strides.Batch + (inner-1)*max(0, t.strides.Token) + (heads-1)*t.strides.Head + dim
	}
	n /= each
	if r.IntN(15) == 0 {
		n = max(0, n+r.IntN(3)-1)
	}
	t.codes = newImage(n, func() T { return randomCode[T](r) })
	t.tensor.Data = t.codes.inside()
	if (each == 1) != (r.IntN(25) == 0) { // blocks have no scale
		t.newScale(r)
	}
	return t
}

func (t *target[T]) newScale(r *rand.Rand) {
	t.scale = &Scale{Value: 0.01 + r.Float32()}
	if r.IntN(3) == 0 {
		if r.IntN(8) == 0 {
			t.scale.Value = []float32{0, -1, float32(math.NaN()), float32(math.Inf(1))}[r.IntN(4)]
		}
		return
	}
	t.scale = &Scale{Computed: r.IntN(2) == 0, Group: []int{0, 0, 16, t.dim, 7}[r.IntN(5)]}
	if t.scale.Group == 7 && r.IntN(4) != 0 {
		t.scale.Group = 8
	}
	groups := t.scale.groups(t.dim)
	n := t.outer * t.inner * t.tensor.Heads * groups
	if r.IntN(4) == 0 {
		head := groups + r.IntN(3)
		token := t.tensor.Heads*head + r.IntN(3)
		t.scale.Strides = &Strides{Batch: t.inner * token, Token: token, Head: head}
		if r.IntN(6) == 0 {
			t.scale.Strides = &Strides{Head: head} // shared by all tokens: if they are given
		}
		n = (t.outer-1)*t.scale.Strides.Batch + (t.inner-1)*t.scale.Strides.Token + (t.tensor.Heads-1)*head + groups
	}
	if r.IntN(15) == 0 {
		n = max(0, n+r.IntN(3)-1)
	}
	t.scales = newImage(n, func() float32 { return 0.01 + r.Float32() })
	t.exponents = newImage(n, func() uint8 { return uint8(118 + r.IntN(10)) })
	if t.scale.Computed && r.IntN(3) == 0 {
		t.scale.PowerOfTwo = true
	}
	if t.scale.Computed && r.IntN(4) == 0 {
		t.scale.MinScale = 0.05
	}
	if r.IntN(3) == 0 {
		t.scale.E8M0 = t.exponents.inside()
		t.scale.PowerOfTwo = t.scale.Computed != (r.IntN(20) == 0)
	} else {
		t.scale.Data = t.scales.inside()
	}
}

func (t *target[T]) any() AnyTensor { return t.tensor.Any().WithScale(t.scale) }

// array is that of the scales, for a Layer.
func (t *target[T]) array() Array {
	switch {
	case t.scale == nil || t.scale.Data == nil && t.scale.E8M0 == nil:
		return Array{}
	case t.scale.E8M0 != nil:
		return ArrayOf(t.scale.E8M0)
	}
	return ArrayOf(t.scale.Data)
}

// restore makes it what it was before any call.
func (t *target[T]) restore() {
	copy(t.codes.now, t.codes.before)
	copy(t.scales.now, t.scales.before)
	copy(t.exponents.now, t.exponents.before)
}

// settle makes what a call must have made of it what it was before the next one.
func (t *target[T]) settle() {
	copy(t.codes.before, t.codes.want)
	copy(t.scales.before, t.scales.want)
	copy(t.exponents.before, t.exponents.want)
	t.restore()
}

func (t *target[T]) differs(accepted bool) string {
	codes, scales, exponents := t.codes.before, t.scales.before, t.exponents.before
	if accepted {
		codes, scales, exponents = t.codes.want, t.scales.want, t.exponents.want
	}
	for i := range codes {
		if t.codes.now[i] != codes[i] {
			return fmt.Sprintf("element %d of %+v is %v, and must be %v", i-margin, t.tensor.Any().form, t.codes.now[i], codes[i])
		}
	}
	for i := range scales {
		if t.scales.now[i] != scales[i] || t.exponents.now[i] != exponents[i] {
			return fmt.Sprintf("scale %d of %+v is %v or %d, and must be %v or %d", i-margin, *t.scale, t.scales.now[i],
				t.exponents.now[i], scales[i], exponents[i])
		}
	}
	return ""
}

// groups calls f for each group of a head: its first channel in the slice, and where its scale is.
func (t *target[T]) groups(outer, inner, head int, f func(at, channels, scale int)) {
	at := outer*t.strides.Batch + inner*t.strides.Token + head*t.strides.Head
	if t.scale == nil {
		f(at, t.dim, 0)
		return
	}
	groups := t.scale.groups(t.dim)
	first := t.firstScale(outer, inner, head) * groups
	if s := t.scale.Strides; s != nil {
		first = outer*s.Batch + inner*s.Token + head*s.Head
	}
	for g := range groups {
		f(at+g*(t.dim/groups), t.dim/groups, first+g)
	}
}

// firstScale is the place of a head in a contiguous array of scales, which has the order of its codes.
func (t *target[T]) firstScale(outer, inner, head int) int {
	switch t.tensor.Layout {
	case LayoutBHSD, LayoutHND:
		return (outer*t.tensor.Heads+head)*t.inner + inner
	case LayoutSBHD:
		return (inner*t.outer+outer)*t.tensor.Heads + head
	}
	return (outer*t.inner+inner)*t.tensor.Heads + head
}

// store puts the codes and scales of a head of x where a call must write them.
func (t *target[T]) store(outer, inner, head int, x []float32) {
	each := dtypeOf[T]().channels()
	t.groups(outer, inner, head, func(at, channels, scale int) {
		group := x[:channels]
		x = x[channels:]
		if each != 1 {
			t.codes.put(at/each, any(blocksOf(group)).([]T)...)
			return
		}
		s := t.scaleFor(scale, group)
		for i, x := range group {
			t.codes.put(at+i, codeOf[T](x, s))
		}
	})
}

// scaleFor is the scale of a group: the one that is given, or that which a call must compute and write.
func (t *target[T]) scaleFor(at int, group []float32) float32 {
	s := t.scale
	if s == nil {
		return 1 // of codes without a scale, which are refused
	}
	if s.Computed {
		var most float32
		for _, x := range group {
			most = max(most, x, -x)
		}
		least := float32(math.Ldexp(1, -126))
		if s.MinScale != 0 {
			least = float32(s.MinScale)
		}
		scale := max(most/largestOf[T](), least)
		if s.PowerOfTwo {
			scale = float32(math.Exp2(math.Ceil(math.Log2(float64(scale)))))
		}
		t.scales.putIf(s.Data != nil, at, scale)
		t.exponents.putIf(s.E8M0 != nil, at, uint8(math.Logb(float64(scale))+127))
		return scale
	}
	switch {
	case s.E8M0 != nil && at < len(s.E8M0):
		return float32(math.Ldexp(1, int(s.E8M0[at])-127))
	case s.Data != nil && at < len(s.Data):
		return s.Data[at]
	}
	return s.Value
}

func (i *image[T]) putIf(yes bool, at int, x T) {
	if yes {
		i.put(at, x)
	}
}

// load is what the codes of a head stand for.
func (t *target[T]) load(outer, inner, head int) (x []float32) {
	each := dtypeOf[T]().channels()
	t.groups(outer, inner, head, func(at, channels, scale int) {
		if each != 1 {
			x = append(x, valuesOf(any(t.tensor.Data[at/each:][:channels/each]).([]Q80))...)
			return
		}
		s := t.scale.Value
		switch {
		case t.scale.Data != nil:
			s = t.scale.Data[scale]
		case t.scale.E8M0 != nil:
			s = float32(math.Ldexp(1, int(t.scale.E8M0[scale])-127))
		}
		for _, code := range t.tensor.Data[at:][:channels] {
			x = append(x, valueOf(code)*s)
		}
	})
	return x
}

// float8 is a type of 8 bits: bits of its fraction, bias of its exponent, and largest value.
type float8 struct {
	fraction, bias int
	largest        float32
}

var e4m3, e5m2 = float8{3, 7, 448}, float8{2, 15, 57344}

// code is that of y, to the nearest and of two to the even one.
func (f float8) code(y float32) uint8 {
	sign := uint8(0)
	if math.Signbit(float64(y)) {
		sign = 0x80
	}
	size := math.Abs(float64(max(-f.largest, min(f.largest, y))))
	exponent := max(math.Ilogb(size), 1-f.bias)
	steps := math.RoundToEven(math.Ldexp(size, f.fraction-exponent))
	return sign | uint8((exponent+f.bias-1)<<f.fraction+int(steps))
}

func (f float8) value(code uint8) float32 {
	exponent, fraction := int(code&0x7f)>>f.fraction, int(code)&(1<<f.fraction-1)
	if exponent == 0 {
		exponent = 1
	} else {
		fraction += 1 << f.fraction
	}
	value := float32(math.Ldexp(float64(fraction), exponent-f.bias-f.fraction))
	if code&0x80 != 0 {
		return -value
	}
	return value
}

func codeOf[T OutputElement](x, scale float32) T {
	var code any
	switch any(*new(T)).(type) {
	case int8:
		code = int8Of(x, scale)
	case F8E4M3:
		code = F8E4M3(e4m3.code(x * (1 / scale)))
	case F8E5M2:
		code = F8E5M2(e5m2.code(x * (1 / scale)))
	}
	return code.(T)
}

func valueOf[T OutputElement](code T) float32 {
	switch code := any(code).(type) {
	case int8:
		return float32(code)
	case F8E4M3:
		return e4m3.value(uint8(code))
	case F8E5M2:
		return e5m2.value(uint8(code))
	}
	panic(code)
}

func largestOf[T OutputElement]() float32 {
	switch any(*new(T)).(type) {
	case F8E4M3:
		return e4m3.largest
	case F8E5M2:
		return e5m2.largest
	}
	return 127
}

func randomCode[T OutputElement](r *rand.Rand) T {
	var code any
	switch any(*new(T)).(type) {
	case int8:
		code = int8(r.IntN(255) - 127)
	case F8E4M3:
		code = F8E4M3(r.IntN(0x7f))
	case F8E5M2:
		code = F8E5M2(r.IntN(0x7c))
	case Q80:
		code = Q80{D: Float16FromFloat32(r.Float32()), Codes: [32]int8{int8(r.IntN(255) - 127)}}
	}
	return code.(T)
}
