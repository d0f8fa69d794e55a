package rope

import (
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/librope/librope/bindings/go/internal/cbaseline"
)

// The medians of rounds that alternate between C and Go, which noise of the machine hits alike.
// "+ns" is what Go adds to a call.
func compare(b *testing.B, calls int, inC, inGo func(n int) time.Duration) {
	var c, goes, more []float64
	for round := 0; round < 51 || round < b.N; round++ {
		var x, y float64
		if round%2 == 0 {
			x = float64(inC(calls)) / float64(calls)
			y = float64(inGo(calls)) / float64(calls)
		} else {
			y = float64(inGo(calls)) / float64(calls)
			x = float64(inC(calls)) / float64(calls)
		}
		c, goes, more = append(c, x), append(goes, y), append(more, y-x)
		if round >= 50 {
			break
		}
	}
	median := func(x []float64) float64 { slices.Sort(x); return x[len(x)/2] }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(c), "C-ns")
	b.ReportMetric(median(goes), "Go-ns")
	b.ReportMetric(median(more), "+ns")
	b.ReportMetric(median(goes)/median(c), "ratio")
}

func BenchmarkOverhead(b *testing.B) {
	const qHeads, kHeads, dim = 32, 8, 128
	for _, size := range []struct {
		name          string
		tokens, calls int
	}{{"decode", 1, 20000}, {"prefill64", 64, 300}, {"prefill512", 512, 40}} {
		c := mustNew(b, Config{HeadDim: dim, Theta: 500000, Pairing: PairingHalves})
		q, k := make([]BFloat16, size.tokens*qHeads*dim), make([]BFloat16, size.tokens*kHeads*dim)
		// The same memory for both: where buffers lie moves a prefill by more than any call costs.
		cq := unsafe.Slice((*uint16)(unsafe.SliceData(q)), len(q))
		ck := unsafe.Slice((*uint16)(unsafe.SliceData(k)), len(k))
		ids := make([]int64, size.tokens)
		for i := range ids {
			ids[i] = int64(1000 + i)
		}
		b.Run("ApplyQK/"+size.name, func(b *testing.B) {
			step := Step{Batch: 1, Tokens: size.tokens, Positions: Offset(1000)}
			compare(b, size.calls, func(n int) time.Duration {
				return cbaseline.Full(n, size.tokens, cq, qHeads, ck, kHeads)
			}, func(n int) time.Duration {
				start := time.Now()
				for range n {
					if err := ApplyQK(c, BSHD(q, qHeads), BSHD(k, kHeads), step); err != nil {
						b.Fatal(err)
					}
				}
				return time.Since(start)
			})
		})
		b.Run("ApplyTHD/"+size.name, func(b *testing.B) {
			compare(b, size.calls, func(n int) time.Duration {
				return cbaseline.THD(n, ids, cq, qHeads, ck, kHeads)
			}, func(n int) time.Duration {
				start := time.Now()
				for range n {
					if err := ApplyTHD(c, ids, q, qHeads, k, kHeads); err != nil {
						b.Fatal(err)
					}
				}
				return time.Since(start)
			})
		})
	}
}

func BenchmarkApplyQKDecodeParallel(b *testing.B) {
	c := mustNew(b, Config{HeadDim: 128, Theta: 500000, Pairing: PairingHalves})
	step := Step{Batch: 1, Tokens: 1, Positions: Offset(1000)}
	b.RunParallel(func(pb *testing.PB) {
		q, k := make([]BFloat16, 32*128), make([]BFloat16, 8*128)
		for pb.Next() {
			if err := ApplyQK(c, BSHD(q, 32), BSHD(k, 8), step); err != nil {
				b.Fatal(err)
			}
		}
	})
}
