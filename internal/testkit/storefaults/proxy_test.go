package storefaults

import (
	"bufio"
	"net"
	"testing"

	"github.com/seqledger/seqledger/internal/testkit/check"
	"github.com/seqledger/seqledger/internal/testkit/must"
)

// echo is a server that answers each line with itself.
func echo(t *testing.T) (address string) {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	// Ends with the listener.
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			// Ends with the connection, which the proxy breaks.
			go func() {
				defer func() { _ = conn.Close() }()
				r := bufio.NewReader(conn)
				for {
					line, err := r.ReadBytes('\n')
					if err != nil {
						return
					}
					if _, err := conn.Write(line); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// talk returns a function that says something to the server, and returns the answer.
func talk(t *testing.T, p *Proxy) func(text string) (string, error) {
	t.Helper()
	conn := must.Get(net.Dial("tcp", p.Address))(t)
	t.Cleanup(func() { _ = conn.Close() })
	r := bufio.NewReader(conn)
	return func(text string) (string, error) {
		if _, err := conn.Write([]byte(text + "\n")); err != nil {
			return "", err
		}
		return r.ReadString('\n')
	}
}

// What was given to At is called before its message, an answer here, is passed on, and once.
func TestAt(t *testing.T) {
	t.Parallel()
	p := Start(t, echo(t))
	say := talk(t, p)
	calls, passed := 0, 0
	p.At(2, func() {
		calls++
		passed = p.Passed()
		p.Set(Refuse) // so that the message does not arrive
	})
	if answer, err := say("hello"); err == nil {
		t.Errorf("%q came before what was to happen before it", answer)
	}
	if !p.At(0, nil) || calls != 1 || passed != 2 {
		t.Errorf("%d calls, at message %d", calls, passed)
	}

	p.Set(Pass)
	say = talk(t, p)
	p.At(5, func() { t.Error("called before its message") })
	for range 2 {
		check.Equal(t, must.Get(say("hello"))(t), "hello\n")
	}
	check.Equal(t, p.Passed(), 4, "%d messages")
	if p.At(0, nil) {
		t.Error("it is said to be called")
	}
	if answer, err := say("hello"); err != nil || answer != "hello\n" || p.Passed() != 2 {
		t.Errorf("%q, %v, %d messages", answer, err, p.Passed())
	}
}

// A proxy that loses answers passes requests on; one that refuses breaks connections, and takes no more.
func TestModes(t *testing.T) {
	t.Parallel()
	p := Start(t, echo(t))
	p.Set(LoseAnswers)
	p.At(0, nil)
	if answer, err := talk(t, p)("hello"); err == nil {
		t.Errorf("%q arrived", answer)
	}
	check.Equal(t, p.Passed(), 2, "%d messages, want a request and an answer")
	p.Set(Pass)
	say := talk(t, p)
	check.Equal(t, must.Get(say("hello"))(t), "hello\n")
	p.Set(Refuse)
	if answer, err := say("again"); err == nil {
		t.Errorf("%q through a broken connection", answer)
	}
	if answer, err := talk(t, p)("hello"); err == nil {
		t.Errorf("%q through a proxy that refuses", answer)
	}
}
