//go:build !linux

package boltstore

// mapPage returns nothing: pages are the garbage collector's here.
func mapPage() (page, mapping []byte) { return nil, nil }

func unmap([]byte) {}
