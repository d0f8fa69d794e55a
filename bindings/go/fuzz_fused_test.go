package rope_test

// The fuzzer's Calls, which have all that a call may have: outputs of other types, repeated heads, v and the rest
// beside q and k, norms of all three and their gradients, and caches of codes. Half of them are prepared.

import (
	"testing"

	rope "github.com/librope/librope/bindings/go"
)

// parts are those of a Call.
type parts struct {
	q, qOut, k, kOut, v, vOut, rest, restOut part
	keys, values                             part // nil: no cache
	pages, pageSize                          int
}

// call is the Call whose tensors are made of the parts in this way.
func (p *parts) call(tensor func(part) rope.AnyTensor) rope.Call {
	call := rope.Call{Q: tensor(p.q), QOut: tensor(p.qOut), K: tensor(p.k), KOut: tensor(p.kOut), V: tensor(p.v),
		VOut: tensor(p.vOut), Rest: tensor(p.rest), RestOut: tensor(p.restOut)}
	if p.keys != nil {
		call.Cache = &rope.Cache{K: tensor(p.keys), V: tensor(p.values), Pages: p.pages, PageSize: p.pageSize}
	}
	return call
}

// layer is what a prepared call is applied to.
func (p *parts) layer(s *source, n *norms) (l rope.Layer) {
	l.Q, _ = p.q.arrays(s)
	l.QOut, l.QOutScales = p.qOut.arrays(s)
	l.K, _ = p.k.arrays(s)
	l.KOut, l.KOutScales = p.kOut.arrays(s)
	l.V, _ = p.v.arrays(s)
	l.VOut, l.VOutScales = p.vOut.arrays(s)
	l.Rest, _ = p.rest.arrays(s)
	l.RestOut, l.RestOutScales = p.restOut.arrays(s)
	if p.keys != nil {
		l.CacheK, l.CacheKScales = p.keys.arrays(s)
		l.CacheV, l.CacheVScales = p.values.arrays(s)
	}
	l.QNormWeight, l.QNormBias, l.QNormRstd = n.q.weight, n.q.bias, n.q.rstd
	l.KNormWeight, l.KNormBias, l.KNormRstd = n.k.weight, n.k.bias, n.k.rstd
	l.VNormWeight, l.VNormBias, l.VNormRstd = n.v.weight, n.v.bias, n.v.rstd
	return l
}

func (p *parts) memory() (memory []guarded) {
	for _, x := range []part{p.q, p.qOut, p.k, p.kOut, p.v, p.vOut, p.rest, p.restOut, p.keys, p.values} {
		if x != nil {
			memory = append(memory, x.memory()...)
		}
	}
	return memory
}

// beside are a tensor that does not turn, and its output.
type beside[In, Out rope.OutputElement] struct {
	in  coded[In]
	out coded[Out]
	z   sizes
}

// newBeside are such; stored: it may go to a cache alone.
func newBeside[In, Out rope.OutputElement](s *source, z sizes, step *rope.Step, stored bool) beside[In, Out] {
	dim := pick(s, z.info.HeadDim, 32*(1+s.below(3)), 1+s.below(40))
	wide := z.plain(dim)
	in := newOperand[In](s, wide)
	in.tensor.Span = s.oneIn(150)
	out := outputOf[Out](s, wide, step, in)
	out.tensor.Span = !out.absent() && s.oneIn(150)
	if out.absent() && !stored && !s.oneIn(12) {
		in = noOperand[In](s)
	}
	x := beside[In, Out]{withScales(s, wide, in), withScales(s, wide, out), wide}
	if dim != z.info.HeadDim {
		x.in.headDim, x.out.headDim = s.number(dim), dim
	}
	return x
}

// allow marks what a call that sees so many batch rows and tokens writes.
func (x *beside[In, Out]) allow(told sizes) {
	if !x.out.absent() {
		x.out.allow(told.plain(x.z.info.HeadDim), true)
		x.out.scales.allow(told)
	}
}

// fused has inputs of one type, outputs of another (but for k, which may turn in place), and a cache of a third.
func fused[In rope.Element, Out, Stored rope.OutputElement](f *fuzzer, t *testing.T, s *source, c *rope.Context) {
	z := newSizes(s, c)
	stored := s.oneIn(2)
	step, memory := newStep(s, z, stored)
	memory = append(memory, addRows[In](s, z, &step)...)
	if s.oneIn(4) {
		step.Pool = f.pool
	}
	inQ, inK := newOperand[In](s, z), newOperand[In](s, z)
	packed(s, inQ, &inK)
	q, k := withScales(s, z, inQ), withScales(s, z, inK)
	qOut, kOut := withScales(s, z, outputOf[Out](s, z, &step, inQ)), withScales(s, z, outputOf[In](s, z, &step, inK))
	v, rest := newBeside[In, Out](s, z, &step, stored), newBeside[In, Out](s, z, &step, false)
	p := parts{q: &q, qOut: &qOut, k: &k, kOut: &kOut, v: &v.in, vOut: &v.out, rest: &rest.in, restOut: &rest.out}

	var cache store[Stored, Stored]
	var slots places
	if stored {
		pages, pageSize := newPageSizes(s, z, step)
		slots = newPlaces(s, z, step, pages, pageSize)
		cache = newStore[Stored, Stored](s, z, k.heads(), v.in.heads(), v.z.info.HeadDim, pages, pageSize,
			k.tensor.Span != s.oneIn(8))
		step.Slots, memory = slots.slots, append(memory, slots.memory...)
		p.keys, p.values, p.pages, p.pageSize = &cache.keys, &cache.values, cache.pages, cache.pageSize
	}
	var n norms
	prepares := s.oneIn(2) && canPrepare(step)
	if wantsNorms(s, step) && (!prepares || step.Operation == rope.OperationForward || s.oneIn(8)) { // others are refused
		parts := s.number(1 + s.below(3))
		n.q, n.k = newNorm(s, z, step, parts, q.operand, qOut.operand), newNorm(s, z, step, parts, k.operand, kOut.operand)
		n.v = newNorm(s, v.z, step, parts, v.in.operand, v.out.operand)
		memory = append(memory, n.addTo(&step)...)
	}
	memory = append(memory, p.memory()...)
	told := z.of(step)
	allowOutput(told, q.operand, qOut.operand, n.q.of != nil)
	qOut.scales.allow(told)
	if !kOut.absent() || cache.keys.absent() { // else k is only read
		allowOutput(told, k.operand, kOut.operand, n.k.of != nil)
	}
	v.allow(told)
	rest.allow(told)
	kinds := append(kindsOf(step), "Apply")
	if repeats(q.operand, qOut.operand) || repeats(k.operand, kOut.operand) || repeats(v.in.operand, v.out.operand) {
		kinds = append(kinds, "repeated heads")
	}
	if qOut.scales.of != nil || v.out.scales.of != nil {
		kinds = append(kinds, "scales of outputs")
	}
	var err error
	if prepares {
		kinds = append(kinds, "PreparedCall")
		if step.Norms != nil {
			kinds = append(kinds, "norms of a PreparedCall")
		}
		err = p.prepared(f, t, s, c, step, &n)
	} else {
		err = rope.Apply(c, p.call(part.whole), step)
	}
	if err == nil && stored {
		cache.allow(slots.slotsOf(told, step, cache.pageSize), true)
	}
	f.count(err, kinds...)
	f.judge(t, err, memory...)
}

// prepared describes the Call, and applies it to a layer, which is now and then another.
func (p *parts) prepared(f *fuzzer, t *testing.T, s *source, c *rope.Context, step rope.Step, n *norms) error {
	if step.Norms != nil && !s.oneIn(40) {
		step.Norms = n.described()
	}
	call, err := rope.PrepareCall(c, p.call(func(x part) rope.AnyTensor { return x.described(s) }), step)
	if err != nil {
		return err
	}
	defer call.Close()
	f.accept(t, s, c, call.Close)
	return call.Apply(p.layer(s, n))
}
