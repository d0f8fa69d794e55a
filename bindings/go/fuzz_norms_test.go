package rope_test

// Norms of the fuzzer's calls: of every kind, with arrays of the right lengths and of others.

import (
	rope "github.com/librope/librope/bindings/go"
)

// newNorm is a norm of a tensor with so many channels, or none, and the memory of its arrays.
func newNorm[W rope.Element](s *source, z sizes, step *rope.Step, heads, channels int) (*rope.Norm, []guarded) {
	if s.oneIn(3) {
		return nil, nil
	}
	n := &rope.Norm{Kind: rope.NormKind(1 + s.below(5)), Order: rope.NormOrder(pick(s, 0, 0, 0, 1)),
		Span: rope.NormSpan(pick(s, 0, 0, 0, 1, 2)), Rounding: rope.NormRounding(pick(s, 0, 1, 1, 2)), Eps: 1e-6,
		PerHead: s.oneIn(4)}
	rows := 1
	if n.PerHead || n.Span != rope.NormSpanHead {
		rows = max(0, min(64, heads))
	}
	length := func(n int) int {
		if s.oneIn(25) {
			return max(0, n+pick(s, -1, 1, channels, -n))
		}
		return n
	}
	weight, bias := fence(s, length(rows*channels), element[W](s)), fence(s, length(rows*channels), element[W](s))
	rstd := fence(s, length(z.batch*z.tokens), element[float32](s))
	memory := []guarded{weight, bias, rstd}
	if n.Kind != rope.NormKindRMSPlain || s.oneIn(30) {
		n.Weight = rope.ArrayOf(weight.inside)
	}
	if n.Kind == rope.NormKindLayerBias || s.oneIn(30) {
		n.Bias = rope.ArrayOf(bias.inside)
	}
	if n.Span == rope.NormSpanGiven || s.oneIn(30) {
		n.Rstd, n.Eps = rstd.inside, 0
	}
	if step.Operation == rope.OperationBackward || s.oneIn(30) { // without X, it is refused
		n.GradParts = s.number(1 + s.below(3))
		parts := max(0, min(4, n.GradParts))
		grads := fence(s, length(parts*rows*channels), element[float32](s))
		n.WeightGrad, memory = grads.inside, append(memory, grads)
	}
	switch s.below(40) {
	case 0:
		n.Kind = rope.NormKind(s.hostile())
	case 1:
		n.Span = rope.NormSpan(s.hostile())
	case 2:
		n.Order, n.Rounding = rope.NormOrder(s.hostile()), rope.NormRounding(s.hostile())
	case 3:
		n.Eps = s.float()
	}
	return n, memory
}

// norm gives a step norms of q and k now and then; tensors that are normed may be written whole.
func norm[Q, K rope.Element](s *source, z sizes, step *rope.Step, q operand[Q], k operand[K]) []guarded {
	if !s.oneIn(2) || step.Operation != rope.OperationForward && !s.oneIn(6) { // others are mostly refused
		return nil
	}
	channels := func(span bool) int {
		if span {
			return z.info.RotaryDim
		}
		return z.info.HeadDim
	}
	n := &rope.Norms{}
	var ofQ, ofK []guarded
	n.Q, ofQ = newNorm[Q](s, z, step, q.tensor.Heads, channels(q.tensor.Span))
	n.K, ofK = newNorm[float32](s, z, step, k.tensor.Heads, channels(k.tensor.Span))
	step.Norms = n
	return append(ofQ, ofK...)
}

// countNormed begins to count the accepted calls with these norms, if there are some; its result ends that.
func (f *fuzzer) countNormed(norms *rope.Norms) func() {
	before := f.accepted
	return func() {
		if norms != nil {
			f.normed += f.accepted - before
		}
	}
}
