package rope

/*
// The call keeps no pointer to a slice and calls nothing in Go.
#cgo noescape ropego_apply_fused
#cgo nocallback ropego_apply_fused
#include "shim.h"
*/
import "C"

import (
	"math"
	"unsafe"
)

// Call is all that a call may have, by name: what ApplyQK and Append take, and what only some models and
// kernels need. Each part may be the zero value, but not both Q and K. The absorbed query of MLA, channels
// that turn beside channels that do not, both in 8 bits:
//
//	call := rope.Call{
//		Q: rope.BSHD(pe, 128).Any(), QOut: rope.BSHD(peOut, 128).Any().WithScale(scale),
//		Rest: rope.BSHD(nope, 128).Any().WithHeadDim(512),
//		RestOut: rope.BSHD(nopeOut, 128).Any().WithHeadDim(512).WithScale(scale),
//	}
//	err := rope.Apply(ctx, call, step)
//
// An output may have another element type than its input, and m times its heads: each is written m times in a
// row. With OperationBackward an input may have m times the heads of its output, which adds them.
type Call struct {
	Q, QOut AnyTensor // without QOut, q turns in place
	// Without KOut, k turns in place, but with a Cache that has K it is only read.
	K, KOut AnyTensor
	V, VOut AnyTensor // v does not turn: it is copied to VOut, to the Cache, or to both

	Rest, RestOut AnyTensor // another such tensor as v: the channels of MLA's q or k that do not turn

	Cache *Cache // whose Step.Slots take k and v; nil: none
}

// Cache is a [KVCache] of memory of any types.
type Cache struct {
	K, V            AnyTensor
	Pages, PageSize int // required
}

// AnyTensor is a [Tensor] of any element type, made by [Tensor.Any]; the zero value is none.
type AnyTensor struct {
	Array
	form    Tensor[float32] // without its slice
	scale   *Scale
	headDim int
}

// Array is a slice of any element type; the zero value is none.
type Array struct {
	data  unsafe.Pointer
	len   int
	bytes uint64 // of an element
	dtype DType
}

// ArrayOf is that of a slice; uint8 are exponents of scales.
func ArrayOf[T OutputElement | uint8](slice []T) Array {
	var zero T
	dtype := dtypeOf[T]()
	if _, exponents := any(zero).(uint8); exponents {
		dtype = DTypeE8M0
	}
	return Array{data: addressOf(slice), len: len(slice), bytes: uint64(unsafe.Sizeof(zero)), dtype: dtype}
}

// Any is the tensor without its type.
func (t Tensor[T]) Any() AnyTensor {
	form := Tensor[float32]{Layout: t.Layout, Heads: t.Heads, Strides: t.Strides, Span: t.Span}
	return AnyTensor{Array: ArrayOf(t.Data), form: form}
}

// WithScale has the scales of an output, or of memory of a Cache, of codes.
func (t AnyTensor) WithScale(scale *Scale) AnyTensor {
	t.scale = scale
	return t
}

// WithHeadDim has so many channels in a head, 1 to 1024: for V, Rest, their outputs and memory of v, all of which
// say so where they do not have those of the context.
func (t AnyTensor) WithHeadDim(channels int) AnyTensor {
	t.headDim = channels
	return t
}

// empty and zero are those of a Tensor.
func (t *AnyTensor) empty() bool { return t.form.empty() && t.Array.len == 0 }
func (t *AnyTensor) zero() bool  { return t.form.zero() && t.Array.len == 0 }

// channels is how many a head has.
func (t *AnyTensor) channels(c *contextState) int {
	if t.headDim != 0 {
		return t.headDim
	}
	return t.form.channels(c)
}

// check fills the C tensor after checking that every element of it lies inside the slice; batch rows and tokens
// are those of sizes.
func (t *AnyTensor) check(function, name string, raw *C.ropego_tensor, dim int, sizes *Step, pages bool) (*C.uint8_t,
	error) {
	n, good := t.form.elements(dim, sizes)
	if !good || !t.form.Layout.holds(n, t.len*t.dtype.channels()) {
		if pages {
			if err := checkPages(function, name, sizes); err != nil {
				return nil, err
			}
		}
		return nil, t.form.Layout.misfit(function, t.form.words(name, dim, sizes, pages), n, good, t.len, t.dtype)
	}
	t.form.fill(raw, dim)
	raw.dtype = C.int32_t(t.dtype)
	if sizes.Batch <= 0 {
		return nil, nil
	}
	if t.data == nil {
		return (*C.uint8_t)(unsafe.Pointer(&nothing)), nil
	}
	return (*C.uint8_t)(t.data), nil
}

// part is one tensor of a call: where it is described, and what a layer of a prepared call brings for it.
type part struct {
	name   string
	tensor *AnyTensor
	in     *AnyTensor // of which it is the output, or the memory; nil: it is neither
	raw    *C.ropego_tensor
	scale  *C.ropego_scale // nil: it is read only
	plain  bool            // it does not turn, and says its head_dim
	pages  bool            // it is memory of a cache
}

// parts are those of a call, in the order of a [Layer]: inputs and outputs, then the memory of a cache.
func (call *Call) parts(raw *C.ropego_append_call, fused *C.ropego_fused) [10]part {
	cache := call.Cache
	if cache == nil {
		cache = &Cache{}
	}
	return [10]part{
		{"q", &call.Q, nil, &raw.call.q, nil, false, false},
		{"qOut", &call.QOut, &call.Q, &raw.call.q_out, &fused.q_out_scale, false, false},
		{"k", &call.K, nil, &raw.call.k, nil, false, false},
		{"kOut", &call.KOut, &call.K, &raw.call.k_out, &fused.k_out_scale, false, false},
		{"v", &call.V, nil, &raw.v, nil, true, false},
		{"vOut", &call.VOut, &call.V, &raw.v_out, &fused.v_out_scale, true, false},
		{"rest", &call.Rest, nil, &fused.rest, nil, true, false},
		{"restOut", &call.RestOut, &call.Rest, &fused.rest_out, &fused.rest_out_scale, true, false},
		{"Cache.K", &cache.K, &call.K, &raw.cache.k, &fused.k_scale, false, true},
		{"Cache.V", &cache.V, &call.V, &raw.cache.v, &fused.v_scale, true, true},
	}
}

// absent tells whether the call has no such tensor, as given does.
func (p *part) absent() bool {
	if p.in != nil && !p.in.empty() {
		return p.tensor.zero()
	}
	return p.tensor.empty()
}

// sizes are batch rows and tokens, or pages and slots.
func (p *part) sizes(call *Call, step *Step) *Step {
	if p.pages {
		return &Step{Batch: call.Cache.Pages, Tokens: call.Cache.PageSize}
	}
	return step
}

// checkNone refuses what is said of a tensor that is none.
func (p *part) checkNone(function string) error {
	if p.tensor.scale != nil || p.tensor.headDim != 0 {
		return invalid(function, "%s has a scale or a head_dim, and no tensor", p.name)
	}
	return nil
}

// checkRules refuses what belongs to other parts.
func (p *part) checkRules(function string) error {
	t := p.tensor
	switch {
	case t.scale != nil && p.scale == nil:
		return invalid(function, "%s has a scale, which is for outputs and for memory of a cache", p.name)
	case t.headDim < 0 || t.headDim > math.MaxInt32 || t.headDim != 0 && !p.plain:
		return invalid(function, "%s has a head_dim (%d), which is for v, rest and their outputs, from 1 on", p.name, t.headDim)
	case t.form.Span && p.plain:
		return invalid(function, "%s does not turn, so it has no Span", p.name)
	case p.pages && t.form.Layout != LayoutNHD && t.form.Layout != LayoutHND && t.form.Layout != LayoutStrided:
		return invalid(function, "%s must have the layout NHD, HND or Strided", p.name)
	}
	return nil
}

// checkSteps checks that slots, cache and operation go together.
func (call *Call) checkStep(function string, step *Step) error {
	switch {
	case step.Source != nil || step.From != nil || step.Operation == OperationRerotate:
		return step.noMove(function)
	case step.Unturned:
		return step.noUnturned(function)
	case (step.Slots != nil) != (call.Cache != nil):
		return invalid(function, "Step.Slots and Call.Cache go together: where k and v are stored, and in what")
	case step.Batch == 0 && step.Tokens > 0 && call.Q.len|call.K.len|call.V.len|call.Rest.len != 0:
		return step.noBatch(function)
	}
	return nil
}

// fill writes pages and page size of a cache, which may be nil.
func (cache *Cache) fill(function string, raw *C.ropego_cache) error {
	if cache == nil {
		return nil
	}
	return fillPages(function, "Cache", cache.Pages, cache.PageSize, raw)
}

// fused are the arrays of a call that does more than rotate.
type fusedArrays struct {
	q, k, v, rest, qOut, kOut, vOut, restOut, cacheK, cacheV            *C.uint8_t
	qOutScales, kOutScales, vOutScales, restOutScales, kScales, vScales *C.uint8_t
	cos, sin                                                            *C.uint8_t
	norms                                                               [3]normData
}

// apply makes the C call.
func (a *fusedArrays) apply(state *contextState, call *C.ropego_append_call, fused *C.ropego_fused, step *Step,
	slots *Slots, pool *C.rope_pool) *C.ropego_error {
	q, k, v := &a.norms[0], &a.norms[1], &a.norms[2]
	return C.ropego_apply_fused(state.ptr, call, fused, a.q, a.k, a.v, a.rest, a.qOut, a.kOut, a.vOut, a.restOut, a.cacheK,
		a.cacheV, a.qOutScales, a.kOutScales, a.vOutScales, a.restOutScales, a.kScales, a.vScales,
		(*C.uint8_t)(slots.numbers), (*C.int32_t)(unsafe.SliceData(slots.pageStarts)),
		(*C.int32_t)(unsafe.SliceData(slots.starts)), q.weight, q.bias, q.rstd, q.x, q.weightGrad, q.biasGrad, k.weight,
		k.bias, k.rstd, k.x, k.weightGrad, k.biasGrad, v.weight, v.bias, v.rstd, v.x, v.weightGrad, v.biasGrad,
		(*C.uint8_t)(step.Positions.ids), (*C.int32_t)(unsafe.SliceData(step.CuSeqlens)),
		(*C.int32_t)(unsafe.SliceData(step.FreqSets)), a.cos, a.sin, pool)
}

// Apply makes a call with all that a Call may have, in one pass.
func Apply(c *Context, call Call, step Step) error {
	const function = "Apply"
	use, err := c.forSlices(function)
	if err != nil {
		return err
	}
	defer use.leave()
	state := &use.body.value
	if err := call.checkStep(function, &step); err != nil {
		return err
	}
	var raw C.ropego_append_call
	var fused C.ropego_fused
	var arrays fusedArrays
	if err := step.check(function, &raw.call, state); err != nil {
		return err
	}
	if err := call.Cache.fill(function, &raw.cache); err != nil {
		return err
	}
	a, parts := &arrays, call.parts(&raw, &fused)
	data := [10]**C.uint8_t{&a.q, &a.qOut, &a.k, &a.kOut, &a.v, &a.vOut, &a.rest, &a.restOut, &a.cacheK, &a.cacheV}
	scales := [10]**C.uint8_t{1: &a.qOutScales, 3: &a.kOutScales, 5: &a.vOutScales, 7: &a.restOutScales, 8: &a.kScales,
		9: &a.vScales}
	for i := range parts {
		p := &parts[i]
		if p.absent() {
			if err := p.checkNone(function); err != nil {
				return err
			}
			continue
		}
		if err := p.checkRules(function); err != nil {
			return err
		}
		dim, sizes := p.tensor.channels(state), p.sizes(&call, &step)
		if *data[i], err = p.tensor.check(function, p.name, p.raw, dim, sizes, p.pages); err != nil {
			return err
		}
		if p.plain {
			p.raw.head_dim = C.int32_t(dim)
		}
		if p.scale != nil {
			*scales[i], err = checkScale(function, p.name+".Scale", p.tensor.scale, p.scale, p.tensor.form.Layout,
				p.tensor.form.Heads, dim, *sizes)
			if err != nil {
				return err
			}
		}
	}
	slots := &Slots{}
	if call.Cache != nil {
		slots = step.Slots
		if err := slots.check(function, "Step.Slots", &raw.cache, &step); err != nil {
			return err
		}
	}
	if step.Norms != nil {
		if a.norms, err = call.checkNorms(function, &fused, state, &step); err != nil {
			return err
		}
	}
	if rows := step.CosSin; rows != nil {
		if err := rows.check(function, &raw.call.rows, state, &step, false); err != nil {
			return err
		}
		a.cos, a.sin = (*C.uint8_t)(rows.data), (*C.uint8_t)(rows.sin)
	}
	var pool *C.rope_pool
	if step.Pool != nil {
		if pool = step.Pool.enter(); pool == nil {
			return closed(function, "Step.Pool")
		}
	}
	failed := a.apply(state, &raw, &fused, &step, slots, pool)
	if pool != nil {
		step.Pool.leave()
	}
	if raceEnabled && failed == nil {
		call.tellRace(state, &step)
	}
	return check(function, failed)
}

// normed is a norm of a call, with its tensor.
type normed struct {
	of     *Norm
	name   string
	raw    *C.ropego_norm
	tensor *AnyTensor
}

// normed are the norms of a call; with OperationBackward they are of what comes out.
func (call *Call) normed(fused *C.ropego_fused, step *Step) [3]normed {
	of := func(in, out *AnyTensor) *AnyTensor {
		if step.Operation == OperationBackward && !out.zero() {
			return out
		}
		return in
	}
	n := step.Norms
	return [3]normed{{n.Q, "Q", &fused.q, of(&call.Q, &call.QOut)}, {n.K, "K", &fused.k, of(&call.K, &call.KOut)},
		{n.V, "V", &fused.v, of(&call.V, &call.VOut)}}
}

// checkNorms fills the norms of a call.
func (call *Call) checkNorms(function string, fused *C.ropego_fused, c *contextState, step *Step) (data [3]normData,
	err error) {
	for i, norm := range call.normed(fused, step) {
		if norm.of != nil && norm.of.X.form.Span && !norm.tensor.form.Span {
			return data, invalid(function, "Norms.%s.X must have no Span where its tensor has none", norm.name)
		}
		data[i], err = norm.of.check(function, norm.name, norm.raw, norm.tensor.form.Heads, norm.tensor.channels(c), step)
		if err != nil {
			return data, err
		}
	}
	return data, nil
}
