//go:build cgo

package rope

import "fmt"

// constant is one enumerator: its type, C's name, which messages of the library use, and Go's.
type constant struct {
	kind, c, name string
	value         int32
}

func nameOf(kind string, value int32) string {
	for _, c := range constants {
		if c.kind == kind && c.value == value {
			return c.name
		}
	}
	return fmt.Sprintf("%s(%d)", kind, value)
}
