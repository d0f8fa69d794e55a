package rope_test

import (
	"fmt"
	"log"
	"math"
	"slices"

	rope "github.com/librope/librope/bindings/go"
)

// projected stands for a projection: numbers that depend on layer, sequence, place, and what they are for.
func projected(layer, sequence, place, what, heads int) []float32 {
	x := make([]float32, heads*dim)
	for i := range x {
		x[i] = float32(math.Sin(float64(1000*layer+100*sequence+3*place+what) + 0.37*float64(i)))
	}
	return x
}

// Append norms q and k as Qwen3 does, turns them, and stores k and v, in one call. Every layer has its own norms.
// The result is that of a norm, a rotation and a copy.
func Example_norms() {
	ctx, err := rope.New(rope.Config{HeadDim: dim, Theta: 10000, Pairing: rope.PairingHalves})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	normsAlone, err := rope.New(rope.Config{HeadDim: dim, Scaling: rope.ScalingNope})
	if err != nil {
		log.Fatal(err)
	}
	defer normsAlone.Close()
	const tokens = 3
	same := true
	for layer := range layers {
		var q, k, v []float32
		for place := range tokens {
			q = append(q, projected(layer, 0, place, 0, qHeads)...)
			k = append(k, projected(layer, 0, place, 1, heads)...)
			v = append(v, projected(layer, 0, place, 2, heads)...)
		}
		norm := func(what int) *rope.Norm { // its weights are of this layer
			weight := rope.ArrayOf(projected(layer, 0, 0, what, 1))
			return &rope.Norm{Kind: rope.NormKindRMS, Eps: 1e-6, Weight: weight, Rounding: rope.NormRoundingEager}
		}
		norms := &rope.Norms{Q: norm(3), K: norm(4)}
		step := rope.Step{Batch: 1, Tokens: tokens, Positions: rope.Offset(5)}

		// Two calls, to compare with.
		twoQ, twoK := slices.Clone(q), slices.Clone(k)
		first := step
		first.Norms = norms
		if err := rope.ApplyQK(normsAlone, rope.BSHD(twoQ, qHeads), rope.BSHD(twoK, heads), first); err != nil {
			log.Fatal(err)
		}
		if err := rope.ApplyQK(ctx, rope.BSHD(twoQ, qHeads), rope.BSHD(twoK, heads), step); err != nil {
			log.Fatal(err)
		}

		// The engine's own call.
		cache := rope.KVCache[float32, float32]{Pages: 2, PageSize: pageSize}
		cache.K = rope.NHD(make([]float32, 2*pageSize*row), heads)
		cache.V = rope.NHD(make([]float32, 2*pageSize*row), heads)
		step.Norms, step.Slots = norms, rope.MappedSlots([]int32{5, 6, 7})
		err := rope.Append(ctx, rope.BSHD(q, qHeads), rope.BSHD(k, heads), rope.BSHD(v, heads), cache, step)
		if err != nil {
			log.Fatal(err)
		}
		same = same && slices.Equal(q, twoQ) && slices.Equal(cache.K.Data[5*row:], twoK) &&
			slices.Equal(cache.V.Data[5*row:], v)
	}
	fmt.Println("one call has the bits of two:", same)
	// Output: one call has the bits of two: true
}

// OLMo 2 norms the heads of a token together, with weights of its own for each of them. One call does that, and turns
// them; the same in float64, at a position where nothing turns.
func Example_normOfAllHeads() {
	ctx, err := rope.New(rope.Config{HeadDim: dim, Theta: 500000, Pairing: rope.PairingHalves})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	q, weight := projected(0, 0, 0, 0, qHeads), projected(0, 0, 0, 3, qHeads) // both [heads, head_dim]
	for i := range q {
		q[i] *= float32(1 + i/dim) // so that heads differ in size
	}
	given := slices.Clone(q)
	norm := &rope.Norm{Kind: rope.NormKindRMS, Eps: 1e-6, Weight: rope.ArrayOf(weight), Span: rope.NormSpanAllHeads}
	step := rope.Step{Batch: 1, Tokens: 1, Positions: rope.Offset(0), Norms: &rope.Norms{Q: norm}}
	if err := rope.ApplyQK(ctx, rope.BSHD(q, qHeads), rope.Tensor[float32]{}, step); err != nil {
		log.Fatal(err)
	}
	squares, off := 0.0, 0.0
	for _, x := range given {
		squares += float64(x) * float64(x)
	}
	for i, x := range given {
		want := float64(x) / math.Sqrt(squares/float64(len(given))+1e-6) * float64(weight[i])
		off = max(off, math.Abs(float64(q[i])-want))
	}
	fmt.Println("the norm of all heads:", off < 1e-5)
	// Output: the norm of all heads: true
}
