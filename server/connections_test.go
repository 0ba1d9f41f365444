package server

import (
	"net"
	"testing"
)

func TestDefaultConnections(t *testing.T) {
	t.Parallel()
	for files, want := range map[uint64]int{
		0: maxConnections, 1 << 40: maxConnections, maxConnections + ownFiles: maxConnections,
		1_024: 768, 300: minConnections, 1: minConnections,
	} {
		if got := defaultConnections(files); got != want {
			t.Errorf("%d files: %d connections, want %d", files, got, want)
		}
	}
	if files := openFilesLimit(); files != 0 && files < minConnections {
		t.Error("this process may hardly open a file:", files)
	}
}

// TestLimitedListener: a connection beyond the limit is closed at once, a
// closed one makes room, and closing twice makes no more.
func TestLimitedListener(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{}, 10)
	var open gate
	l := &limitedListener{inner, 1, &open, func() { refused <- struct{}{} }}
	accepted := make(chan net.Conn)
	// Ends when the listener is closed, which the end of the test waits for.
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	dial()
	first := <-accepted
	second := dial()
	<-refused
	if _, err := second.Read(make([]byte, 1)); err == nil {
		t.Error("a connection beyond the limit must be closed")
	}
	for range 2 {
		_ = first.Close()
	}
	if open.count() != 0 {
		t.Error("open connections:", open.count())
	}
	dial()
	_ = (<-accepted).Close()
	if err := inner.Close(); err != nil {
		t.Error(err)
	}
	for c := range accepted {
		_ = c.Close()
	}
}
