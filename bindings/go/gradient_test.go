package rope

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

const gradDim, gradTokens, gradHeads = 16, 6, 2

// loss is the sum, in float64, of what comes out, each times its weight in grad: a norm with bias, with weights of each
// head, the rotation by
// the context's own frequencies, and each head twice.
func loss(frequencies, x, weight, bias []float64, grad []float32) (sum float64) {
	for n := range len(x) / gradDim {
		head, mean, square := x[n*gradDim:(n+1)*gradDim], 0.0, 0.0
		for _, x := range head {
			mean += x / gradDim
		}
		for _, x := range head {
			square += (x - mean) * (x - mean) / gradDim
		}
		token, h := n/gradHeads, n%gradHeads
		y := func(c int) float64 {
			at := h*gradDim + c
			return (head[c]-mean)/math.Sqrt(square+1e-5)*weight[at] + bias[at]
		}
		for i, frequency := range frequencies {
			sin, cos := math.Sincos(float64(11+token) * frequency)
			a, b := y(i), y(i+gradDim/2)
			for again := range 2 {
				at := (token*2*gradHeads + 2*h + again) * gradDim
				sum += (a*cos - b*sin) * float64(grad[at+i])
				sum += (b*cos + a*sin) * float64(grad[at+i+gradDim/2])
			}
		}
	}
	return sum
}

func derivative(at []float64, i int, f func() float64) float64 {
	before := at[i]
	defer func() { at[i] = before }()
	at[i] = before + 1e-6
	above := f()
	at[i] = before - 1e-6
	return (above - f()) / 2e-6
}

func toFloats(x []float32) (y []float64) {
	for _, x := range x {
		y = append(y, float64(x))
	}
	return y
}

func TestGradientsAreDifferences(t *testing.T) {
	c, r := mustNew(t, plain(gradDim)), rand.New(rand.NewPCG(7, 8))
	frequencies, err := c.InvFreq(0)
	if err != nil {
		t.Fatal(err)
	}
	x := random[float32](r, gradTokens*gradHeads*gradDim)
	weight, bias := random[float32](r, gradHeads*gradDim), random[float32](r, gradHeads*gradDim)
	grad := random[float32](r, 2*len(x))
	const parts = 3
	norm := &Norm{Kind: NormKindLayerBias, Eps: 1e-5, Weight: ArrayOf(weight), Bias: ArrayOf(bias), PerHead: true,
		X: BSHD(x, gradHeads).Any(), GradParts: parts, WeightGrad: make([]float32, parts*gradHeads*gradDim),
		BiasGrad: make([]float32, parts*gradHeads*gradDim)}
	step := Step{Batch: 1, Tokens: gradTokens, Positions: Offset(11), Operation: OperationBackward, Norms: &Norms{K: norm}}
	out := make([]float32, len(x))
	err = ApplyQKTo(c, Tensor[float32]{}, BSHD(out, gradHeads), Tensor[float32]{}, BSHD(grad, 2*gradHeads), step)
	if err != nil {
		t.Fatal(err)
	}
	atX, atWeight, atBias := toFloats(x), toFloats(weight), toFloats(bias)
	f := func() float64 { return loss(frequencies, atX, atWeight, atBias, grad) }
	compare := func(what string, i int, got float32, want float64) {
		t.Helper()
		if math.Abs(float64(got)-want) > 2e-4*(1+math.Abs(want)) {
			t.Fatalf("%s %d: %v, want %v", what, i, got, want)
		}
	}
	for i, got := range out {
		compare("x", i, got, derivative(atX, i, f))
	}
	sum := func(parts []float32, c int) (sum float32) {
		for ; c < len(parts); c += gradHeads * gradDim {
			sum += parts[c]
		}
		return sum
	}
	for i := range gradHeads * gradDim {
		compare("weight", i, sum(norm.WeightGrad, i), derivative(atWeight, i, f))
		compare("bias", i, sum(norm.BiasGrad, i), derivative(atBias, i, f))
	}

	// The same by a Call.
	again := make([]float32, len(x))
	if err := Apply(c, Call{K: BSHD(grad, 2*gradHeads).Any(), KOut: BSHD(again, gradHeads).Any()}, step); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(again, out) {
		t.Error("a Call has other bits")
	}
}

func TestGradientsThatDoNotFit(t *testing.T) {
	c, x := mustNew(t, plain(gradDim)), make([]float32, gradTokens*gradHeads*gradDim)
	weight := make([]float32, gradHeads*gradDim)
	for words, change := range map[string]func(*Norm){
		"Norms.Q.X (nil) is required":                                         func(n *Norm) { n.X = AnyTensor{} },
		"Norms.Q.X with batch 1, tokens 6, heads 2":                           func(n *Norm) { n.X = BSHD(x[1:], gradHeads).Any() },
		"Norms.Q.WeightGrad has 96 elements, and must have 2 parts of 2 rows": func(n *Norm) { n.WeightGrad = make([]float32, 96) },
		"Norms.Q.BiasGrad":                                                    func(n *Norm) { n.BiasGrad = make([]float32, 64) },
		"Norms.Q.GradParts (-1) must be":                                      func(n *Norm) { n.GradParts = -1 },
		"Norms.Q.GradParts (2) must be":                                       func(n *Norm) { n.WeightGrad = nil },
		"Norms.Q.GradParts (0) is required with WeightGrad":                   func(n *Norm) { n.GradParts = 0 },
		"Norms.Q.X must have no Scale":                                        func(n *Norm) { n.X = n.X.WithScale(&Scale{Value: 1}) },
		"no other head_dim than":                                              func(n *Norm) { n.X = n.X.WithHeadDim(8) },
	} {
		grad := slices.Repeat([]float32{1}, len(x))
		norm := &Norm{Kind: NormKindRMS, Eps: 1e-5, Weight: ArrayOf(weight), PerHead: true, X: BSHD(x, gradHeads).Any(),
			GradParts: 2, WeightGrad: make([]float32, 64)}
		change(norm)
		step := Step{Batch: 1, Tokens: gradTokens, Positions: Offset(0), Operation: OperationBackward, Norms: &Norms{Q: norm}}
		refused(t, ApplyQK(c, BSHD(grad, gradHeads), Tensor[float32]{}, step), words)
		if slices.ContainsFunc(grad, func(x float32) bool { return x != 1 }) {
			t.Errorf("%s: something is written", words)
		}
	}
}
