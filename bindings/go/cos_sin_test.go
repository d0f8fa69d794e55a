package rope

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// Each head by a row of its own, tokens first and heads first: as calls on one head each.
func TestRowsForEachHead(t *testing.T) {
	const tokens, heads, width = 3, 2, 16
	c, err := New(Config{HeadDim: width, Theta: 10000, Pairing: PairingHalves})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	value := func(token, head, i int) float32 { return float32(token*1000+head*100+i) * 0.01 }
	tokensFirst, headsFirst := make([]float32, 0, 96), make([]float32, 96)
	var own [heads][]float32
	for token := range tokens {
		for head := range heads {
			for i := range width {
				x := value(token, head, i)
				tokensFirst = append(tokensFirst, x)
				headsFirst[(head*tokens+token)*width+i] = x
				own[head] = append(own[head], x)
			}
		}
	}
	turned := func(rows *CosSin) []float32 {
		q := make([]float32, tokens*heads*width)
		for i := range q {
			q[i] = float32(i) * 0.125
		}
		step := Step{Batch: 1, Tokens: tokens, CosSin: rows}
		if err := ApplyQK(c, BSHD(q, heads), Tensor[float32]{}, step); err != nil {
			t.Fatal(err)
		}
		return q
	}
	rows := Packed(tokensFirst)
	rows.Heads = heads
	got := turned(rows)
	rows = Packed(headsFirst)
	rows.Heads, rows.Stride, rows.HeadStride = heads, width, tokens*width
	if !slices.Equal(turned(rows), got) {
		t.Error("heads first gives other values than tokens first")
	}
	for head := range heads {
		alone := turned(Packed(own[head]))
		for token := range tokens {
			at := (token*heads + head) * width
			if !slices.Equal(alone[at:at+width], got[at:at+width]) {
				t.Errorf("token %d, head %d", token, head)
			}
		}
	}
	rows.Heads = 3
	err = ApplyQK(c, BSHD(make([]float32, 96), heads), Tensor[float32]{},
		Step{Batch: 1, Tokens: tokens, CosSin: rows})
	if err == nil || !strings.Contains(err.Error(), "for each of 3 heads") {
		t.Errorf("rows that are too short: %v", err)
	}
}

// Frequencies of each head, summed over axes, and rows of them.
func TestGeneralAngle(t *testing.T) {
	const axes, heads, pairs = 2, 3, 8
	table := make([]float64, axes*heads*pairs)
	for i := range table {
		table[i] = float64(i%7)*0.25 - 0.5
	}
	config := Config{HeadDim: 2 * pairs, Pairing: PairingHalves, Axes: axes, FreqHeads: heads, Frequency: table}
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if info, err := c.Info(0); err != nil || info.FreqHeads != heads {
		t.Errorf("%+v, %v", info, err)
	}
	if told, err := c.InvFreq(0); err != nil || !slices.Equal(told, table) {
		t.Errorf("InvFreq is %v, %v", told, err)
	}
	given := make([]float32, heads*2*pairs)
	for i := range given {
		given[i] = float32(i)*0.125 - 2
	}
	q := slices.Clone(given)
	step := Step{Batch: 1, Tokens: 1, Positions: BatchTokenAxesIDs([]int64{7, 11})}
	if err := ApplyQK(c, BSHD(q, heads), Tensor[float32]{}, step); err != nil {
		t.Fatal(err)
	}
	for h := range heads {
		for i := range pairs {
			angle := 7*table[h*pairs+i] + 11*table[(heads+h)*pairs+i]
			x, y := float64(given[h*2*pairs+i]), float64(given[h*2*pairs+pairs+i])
			if want := x*math.Cos(angle) - y*math.Sin(angle); math.Abs(want-float64(q[h*2*pairs+i])) > 1e-5 {
				t.Errorf("head %d, pair %d: %v in place of %v", h, i, q[h*2*pairs+i], want)
			}
		}
	}
	rows := Packed(make([]float32, heads*2*pairs))
	rows.Heads = heads
	if err := FillCosSin(c, step, rows); err != nil {
		t.Fatal(err)
	}
	again := slices.Clone(given)
	step = Step{Batch: 1, Tokens: 1, CosSin: rows}
	if err := ApplyQK(c, BSHD(again, heads), Tensor[float32]{}, step); err != nil || !slices.Equal(again, q) {
		t.Errorf("by rows: %v, %v", again, err)
	}
	config.Frequency = table[1:]
	if _, err := New(config); err == nil || !strings.Contains(err.Error(), "Frequency has 47 entries") {
		t.Errorf("a table that is too short: %v", err)
	}
}

// Rows that are written are one for each batch row, in slices of one length; the operation does not count.
func TestRowsThatCannotBeWritten(t *testing.T) {
	c, err := New(Config{HeadDim: 4, Theta: 10000, Pairing: PairingHalves})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	step := Step{Batch: 1, Tokens: 2, Positions: Offset(3), Operation: OperationShift}
	if err := FillCosSin(c, step, Split(make([]float32, 4), make([]float32, 4))); err != nil {
		t.Error(err)
	}
	if FillCosSin(c, step, Split(make([]float32, 4), make([]float32, 5))) == nil {
		t.Error("slices of two lengths")
	}
	shared := Packed(make([]float32, 8))
	shared.Shared = true
	if FillCosSin(c, step, shared) == nil {
		t.Error("Shared")
	}
}
