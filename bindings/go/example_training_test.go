package rope_test

import (
	"fmt"
	"log"
	"math"

	rope "github.com/librope/librope/bindings/go"
)

// Training with QK norm and grouped queries: one call turns the gradients of q and of repeated k, as attention gives
// them, into that of the packed projection, and into that of the norm's weights, in parts. They are compared with how
// much the loss grows where a number grows.
func Example_training() {
	ctx, err := rope.New(rope.Config{HeadDim: dim, Theta: 10000, Pairing: rope.PairingHalves})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	const tokens, packed, parts = 5, (qHeads + heads) * dim, 2 // parts: work for two threads
	numbers := func(what, count int) []float32 {
		x := make([]float32, count)
		for i := range x {
			x[i] = float32(math.Sin(float64(what) + 0.37*float64(i)))
		}
		return x
	}
	qk, weight := numbers(1, tokens*packed), numbers(2, dim)                 // what the projection has given
	qUp, kUp := numbers(3, tokens*qHeads*dim), numbers(4, tokens*qHeads*dim) // gradients
	rows := func(x []float32) (q, k rope.Tensor[float32]) {                  // of the projection, or of its gradient
		strides := rope.Strides{Token: packed, Head: dim}
		return rope.Strided(x, qHeads, strides), rope.Strided(x[qHeads*dim:], heads, strides)
	}
	norm := func() *rope.Norm {
		return &rope.Norm{Kind: rope.NormKindRMS, Eps: 1e-6, Weight: rope.ArrayOf(weight)}
	}
	step := rope.Step{Batch: 1, Tokens: tokens, Positions: rope.Offset(7)}

	// What attention reads times the gradients; a head of k serves two of q.
	loss := func() (sum float64) {
		q, k := make([]float32, tokens*qHeads*dim), make([]float32, tokens*heads*dim)
		forward := step
		forward.Norms = &rope.Norms{Q: norm()}
		fromQ, fromK := rows(qk)
		if err := rope.ApplyQKTo(ctx, rope.BSHD(q, qHeads), rope.BSHD(k, heads), fromQ, fromK, forward); err != nil {
			log.Fatal(err)
		}
		for i := range q {
			head := i / dim / (qHeads / heads) // of k, over all tokens
			sum += float64(q[i])*float64(qUp[i]) + float64(k[head*dim+i%dim])*float64(kUp[i])
		}
		return sum
	}

	grad, sums := make([]float32, tokens*packed), make([]float32, parts*dim)
	x, _ := rows(qk) // what the norm was given
	ofQ := norm()
	ofQ.X, ofQ.WeightGrad, ofQ.GradParts = x.Any(), sums, parts
	backward := step
	backward.Operation, backward.Norms = rope.OperationBackward, &rope.Norms{Q: ofQ}
	toQ, toK := rows(grad)
	err = rope.ApplyQKTo(ctx, toQ, toK, rope.BSHD(qUp, qHeads), rope.BSHD(kUp, qHeads), backward)
	if err != nil {
		log.Fatal(err)
	}

	compare := func(name string, value *float32, gradient float32) {
		const by = 1.0 / 64
		before := *value
		*value = before + by
		above := loss()
		*value = before - by
		slope := (above - loss()) / (2 * by)
		*value = before
		fmt.Printf("%-22s %5.2f, right: %v\n", name, gradient, math.Abs(slope-float64(gradient)) < 2e-3)
	}
	compare("q, token 2, channel 70", &qk[2*packed+70], grad[2*packed+70])
	compare("k, token 3, the last", &qk[4*packed-1], grad[4*packed-1])
	compare("weight 5", &weight[5], sums[5]+sums[dim+5])
	// Output:
	// q, token 2, channel 70  1.33, right: true
	// k, token 3, the last   -1.82, right: true
	// weight 5                0.47, right: true
}
