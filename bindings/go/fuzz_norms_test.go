package rope_test

// Norms of the fuzzer's calls: of every kind, with arrays of the right lengths and of others, and their gradients.

import (
	"slices"

	rope "github.com/librope/librope/bindings/go"
)

// anyNorm is a norm, as Apply takes it and as PrepareCall does, and what a layer brings for it.
type anyNorm struct {
	of, described      *rope.Norm
	weight, bias, rstd rope.Array
	memory             []guarded
}

// norms are those of a call.
type norms struct{ q, k, v anyNorm }

// addTo gives them to a step, and returns their memory.
func (n *norms) addTo(step *rope.Step) []guarded {
	step.Norms = &rope.Norms{Q: n.q.of, K: n.k.of, V: n.v.of}
	return slices.Concat(n.q.memory, n.k.memory, n.v.memory)
}

func (n *norms) described() *rope.Norms {
	return &rope.Norms{Q: n.q.described, K: n.k.described, V: n.v.described}
}

// wantsNorms tells now and then that a step is to have norms: one that can have them, mostly.
func wantsNorms(s *source, step rope.Step) bool {
	able := step.From == nil && (step.Operation == rope.OperationForward || step.Operation == rope.OperationBackward)
	return s.oneIn(2) && (able || s.oneIn(8))
}

// newNorm is a norm of a tensor, or none. Gradients, in so many parts, are of what comes out.
func newNorm[In, Out rope.OutputElement](s *source, z sizes, step rope.Step, parts int, in operand[In], out operand[Out]) anyNorm {
	if in.absent() && !s.oneIn(30) || s.oneIn(4) {
		return anyNorm{}
	}
	if step.Operation == rope.OperationBackward && !out.absent() {
		return normOf[Out](s, z, step, parts, out.heads(), out.tensor.Span)
	}
	return normOf[In](s, z, step, parts, in.heads(), in.tensor.Span)
}

// normOf is a norm of so many heads, whose input had elements X.
func normOf[X rope.OutputElement](s *source, z sizes, step rope.Step, parts, heads int, span bool) (n anyNorm) {
	back, channels := step.Operation == rope.OperationBackward, z.channels(span)
	norm := &rope.Norm{Kind: rope.NormKind(1 + s.below(5)), Span: rope.NormSpan(pick(s, 0, 0, 0, 1)), Eps: 1e-6,
		Rounding: rope.NormRounding(pick(s, 0, 1, 1, 2))}
	if !back || s.oneIn(20) {
		norm.Span = pick(s, norm.Span, norm.Span, norm.Span, rope.NormSpanGiven)
		if z.info.Pairs != 0 || s.oneIn(20) { // it turns
			norm.Order = rope.NormOrder(pick(s, 0, 0, 0, 1))
		}
	}
	hasWeight, hasBias := norm.Kind != rope.NormKindRMSPlain, norm.Kind == rope.NormKindLayerBias
	norm.PerHead = s.oneIn(4) && (hasWeight || s.oneIn(8))
	rows := 1
	if norm.PerHead || norm.Span != rope.NormSpanHead && hasWeight {
		rows = heads
	}
	n.of = norm
	addArrays := pick(s, addWeights[float32], addWeights[rope.Float16], addWeights[rope.BFloat16])
	empty := addArrays(s, &n, s.length(20, rows*channels, channels), hasWeight != s.oneIn(60), hasBias != s.oneIn(60))
	if norm.Span == rope.NormSpanGiven || s.oneIn(60) {
		rstd := fence(s, s.length(20, z.batch*z.tokens), element[float32](s))
		n.memory = append(n.memory, rstd)
		norm.Rstd, norm.Eps, n.rstd = rstd.inside, 0, arrayOf(s, rstd.inside)
	}
	if back != s.oneIn(60) {
		x := operandOf[X](s, z, heads, span)
		norm.X = x.tensor.Any()
		grads := func(has bool) []float32 {
			if !s.oneIn(2) || !has && !s.oneIn(20) {
				return nil
			}
			norm.GradParts = parts
			grads := fence(s, s.length(15, max(0, min(4, parts))*rows*channels, channels), element[float32](s))
			grads.allow(0, len(grads.inside))
			n.memory = append(n.memory, grads)
			return grads.inside
		}
		norm.WeightGrad, norm.BiasGrad = grads(hasWeight), grads(hasBias)
		n.memory = append(n.memory, x.region)
	}
	switch s.below(120) {
	case 0:
		norm.Kind = rope.NormKind(s.hostile())
	case 1:
		norm.Span = rope.NormSpan(s.hostile())
	case 2:
		norm.Order, norm.Rounding = rope.NormOrder(s.hostile()), rope.NormRounding(s.hostile())
	case 3:
		norm.Eps = s.float()
	}
	described := *norm
	if !s.oneIn(40) {
		described.Weight, described.Bias, described.Rstd = empty, rope.Array{}, nil
	}
	n.described = &described
	return n
}

// addWeights gives a norm weights and biases of this length, and returns what describes the weights.
func addWeights[W rope.Element](s *source, n *anyNorm, length int, weight, bias bool) (described rope.Array) {
	add := func(whole, layer *rope.Array) {
		r := fence(s, length, element[W](s))
		n.memory = append(n.memory, r)
		*whole, *layer = rope.ArrayOf(r.inside), arrayOf(s, r.inside)
	}
	if weight {
		add(&n.of.Weight, &n.weight)
		described = rope.ArrayOf([]W{})
	}
	if bias {
		add(&n.of.Bias, &n.bias)
	}
	return described
}
