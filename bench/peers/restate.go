package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

// restate is a Restate server, and the service that it invokes, which is in this process.
type restate struct {
	address string
	service *httptest.Server
	work    sync.Map // by key, what an invocation does
}

func (r *restate) launch(ctx context.Context, dir string) (_ []*process.Process, err error) {
	if r.service == nil {
		r.service = httptest.NewUnstartedServer(r)
		r.service.Config.Protocols = new(http.Protocols)
		r.service.Config.Protocols.SetUnencryptedHTTP2(true)
		r.service.Start()
		context.AfterFunc(ctx, r.service.Close)
	}
	var addresses [3]string
	for i := range addresses {
		if addresses[i], err = freeport.Address(); err != nil {
			return nil, err
		}
	}
	r.address = "http://" + addresses[0]
	command := exec.Command("restate-server", "--base-dir", dir, "--node-name", "bench", "--bind-address",
		addresses[2], "--listen-mode", "tcp")
	command.Env = append(os.Environ(), "RESTATE_INGRESS__BIND_ADDRESS="+addresses[0],
		"RESTATE_ADMIN__BIND_ADDRESS="+addresses[1], "RESTATE_DISABLE_TELEMETRY=true")
	// It has to take calls with our service.
	return launchOther(ctx, command, nil, dir, func(ctx context.Context) error {
		deployment := fmt.Appendf(nil, `{"uri":%q,"force":true}`, r.service.URL)
		_, err := post(ctx, http.DefaultClient, "http://"+addresses[1]+"/deployments", "", deployment)
		if err == nil { // the one key that is no number
			_, err = (&restateConn{r, http.DefaultClient}).once(ctx, "ready", func() []byte { return nil })
		}
		return err
	})
}

// ServeHTTP is the endpoint of the service: it tells what it has, and does the work of invocations. A message of
// Restate's protocol has a type and flags of two bytes each, a length of four, and protobuf.
func (r *restate) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if request.URL.Path == "/discover" {
		w.Header().Set("Content-Type", "application/vnd.restate.endpointmanifest.v1+json")
		_, _ = io.WriteString(w, `{"protocolMode":"REQUEST_RESPONSE","minProtocolVersion":5,"maxProtocolVersion":5,`+
			`"services":[{"name":"bench","ty":"SERVICE","handlers":[{"name":"pair"}]}]}`)
		return
	}
	const input, output, end, value, content = 0x0400, 0x0401, 0x0003, 14, 1
	messages, err := io.ReadAll(request.Body)
	if err != nil {
		return // the server will ask again
	}
	var answer []byte
	for len(messages) >= 8 {
		body := messages[8:][:binary.BigEndian.Uint32(messages[4:])]
		switch binary.BigEndian.Uint16(messages) {
		case output: // stored when it asked before
			answer = nil
		case input:
			work, known := r.work.Load(string(field(field(body, value), content)))
			if !known {
				http.Error(w, "there is no such work", http.StatusNotFound)
				return
			}
			body := bytesField(value, bytesField(content, work.(func() []byte)()))
			answer = append(binary.BigEndian.AppendUint64(nil, output<<48|uint64(len(body))), body...)
		}
		messages = messages[8+len(body):]
	}
	w.Header().Set("Content-Type", request.Header.Get("Content-Type"))
	_, _ = w.Write(binary.BigEndian.AppendUint64(answer, end<<48))
}

// field returns the bytes of a field of a protobuf message, nil if there is none.
func field(message []byte, number protowire.Number) (found []byte) {
	for len(message) > 0 {
		n, kind, tag := protowire.ConsumeTag(message)
		size := protowire.ConsumeFieldValue(n, kind, message[max(tag, 0):])
		if tag < 0 || size < 0 {
			return nil
		}
		if n == number {
			found, _ = protowire.ConsumeBytes(message[tag:])
		}
		message = message[tag+size:]
	}
	return found
}

func bytesField(number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
}

func (r *restate) connect(_ context.Context, at placement) (conn, error) {
	return &restateConn{r, &http.Client{Transport: &http.Transport{
		MaxConnsPerHost: at.connections, MaxIdleConnsPerHost: at.connections,
	}}}, nil
}

// restateConn calls over a pool of connections.
type restateConn struct {
	server *restate
	client *http.Client
}

func (c *restateConn) do(context.Context, *job, bool) (answer, error) {
	return answer{}, errors.ErrUnsupported
}

func (c *restateConn) once(ctx context.Context, key string, work func() []byte) ([]byte, error) {
	c.server.work.Store(key, work)
	defer c.server.work.Delete(key)
	return post(ctx, c.client, c.server.address+"/bench/pair", key, []byte(key))
}

func (c *restateConn) close() error {
	c.client.CloseIdleConnections()
	return nil
}

// post sends a request with an idempotency key, and reads the answer.
func post(ctx context.Context, c *http.Client, url, key string, content []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	response, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // It was only read.
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s: %s", response.Status, answer)
	}
	return answer, err
}
