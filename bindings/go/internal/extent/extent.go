// Package extent answers whether the elements that a call will touch lie inside a slice. The answers
// are exact on every platform: sizes of 32-bit targets are multiplied in 64 bits, those of 64-bit
// targets in 128. It is free of cgo, so that its tests also run where int has 32 bits.
package extent

import "math/bits"

// Fills tells whether a * b * c is n. None of them is negative, or it does not.
func Fills(n, a, b, c int) bool {
	if (n | a | b | c) < 0 {
		return false
	}
	if a|b|c < 1<<20 {
		return uint64(a)*uint64(b)*uint64(c) == uint64(n)
	}
	product, ok := Product(a, b, c)
	return ok && product == uint64(n)
}

// Product multiplies; false if a factor is negative or the result is beyond 2^63 - 1.
func Product(factors ...int) (uint64, bool) {
	product, fits := uint64(1), true
	for _, f := range factors {
		if f < 0 {
			return 0, false
		}
		if f == 0 {
			product, fits = 0, true
			continue
		}
		var high uint64
		high, product = bits.Mul64(product, uint64(f))
		fits = fits && high == 0 && product < 1<<63
	}
	return product, fits
}

// Volume is the Product of four.
func Volume(a, b, c, d int) (uint64, bool) {
	if uint(a|b|c|d) < 1<<15 {
		return uint64(a) * uint64(b) * uint64(c) * uint64(d), true
	}
	return Product(a, b, c, d)
}

// Reaches tells whether the last of counts[0] x counts[1] x counts[2] blocks of width elements, with
// strides between them, ends inside n elements. Counts are positive; strides are not negative, or it
// does not.
func Reaches(n, width int, counts [3]uint64, strides [3]int) bool {
	end, ok := End(width, counts, strides)
	return ok && end <= uint64(n)
}

// End is where the last of these blocks ends; false if a stride is negative, or beyond 2^64 - 1.
func End(width int, counts [3]uint64, strides [3]int) (uint64, bool) {
	total := uint64(width)
	for i := range counts {
		if strides[i] < 0 {
			return 0, false
		}
		high, low := bits.Mul64(counts[i]-1, uint64(strides[i]))
		sum, carry := bits.Add64(total, low, 0)
		if high != 0 || carry != 0 {
			return 0, false
		}
		total = sum
	}
	return total, true
}
