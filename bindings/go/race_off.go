//go:build cgo && !race

package rope

import "unsafe"

const raceEnabled = false

func raceIgnore() {}
func raceWatch()  {}

func raceRead(unsafe.Pointer, uint64)  {}
func raceWrite(unsafe.Pointer, uint64) {}
