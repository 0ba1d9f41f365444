package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

const etcdSettings = "one member, defaults (every entry is synced before it is applied), 8 GiB quota; one Txn, " +
	"one round trip"

const etcdLacks = "the request hash is stored and the client has to compare it; a retry goes through the log like a " +
	"write"

// serveEtcd is the server's process. members are the addresses of all members for each other, separated by commas,
// its own first; empty where there is only one.
func serveEtcd(ctx context.Context, dir, members string) error {
	config := embed.NewConfig()
	config.Dir, config.QuotaBackendBytes = dir, 8<<30
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop().WithOptions(zap.IncreaseLevel(zapcore.FatalLevel)))
	var listen [2]url.URL // for clients and for peers
	for i := range listen {
		address, err := freeport.Address()
		if err != nil {
			return err
		}
		listen[i] = url.URL{Scheme: "http", Host: address}
	}
	config.ListenClientUrls, config.AdvertiseClientUrls = listen[:1], listen[:1]
	config.ListenPeerUrls, config.AdvertisePeerUrls = listen[1:], listen[1:]
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	if members != "" {
		addresses := strings.Split(members, ",")
		peer := url.URL{Scheme: "http", Host: addresses[0]}
		config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		config.Name, config.InitialCluster = addresses[0], ""
		for _, address := range addresses {
			config.InitialCluster += "," + address + "=http://" + address
		}
		config.InitialCluster = config.InitialCluster[1:]
	}
	s, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer s.Close()
	select {
	case <-s.Server.ReadyNotify():
	case err := <-s.Err():
		return err
	case <-ctx.Done():
		return nil
	}
	fmt.Println(listen[0].Host)
	select {
	case err := <-s.Err():
		return err
	case <-ctx.Done():
		return nil
	}
}

// etcdServer is an etcd process with one member.
type etcdServer struct{ child }

func newEtcd() system {
	e := new(etcdServer)
	e.launch = func(ctx context.Context) error { return e.self(ctx, "etcd") }
	return e
}

func (e *etcdServer) connect(ctx context.Context, at placement) (conn, error) {
	return connectEtcd(ctx, []string{e.address}, at)
}

func connectEtcd(ctx context.Context, endpoints []string, at placement) (conn, error) {
	c := &etcdConn{}
	for range at.connections {
		one, err := clientv3.New(clientv3.Config{
			Endpoints: endpoints, Context: ctx, DialTimeout: process.StartsWithin, Logger: zap.NewNop(),
		})
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.clients = append(c.clients, one)
	}
	return c, nil
}

// etcdConn calls over some connections, each shared by many callers.
type etcdConn struct{ clients []*clientv3.Client }

// do is the work of one write, and of its repeat. What the stream has reached is compared as
// text. The receipt is the stored request and the revision that stored it.
func (c *etcdConn) do(ctx context.Context, j *job, _ bool) (answer, error) {
	head := "s/" + j.client()
	receipt := fmt.Sprintf("r/%s/%d", j.client(), j.sequence%64)
	key, hash := j.key(), j.hash()
	request := fmt.Sprintf("%d %x %x", j.sequence, key, hash)
	expected := clientv3.Compare(clientv3.Value(head), "=", strconv.FormatUint(j.sequence-1, 10))
	if j.sequence == 1 {
		expected = clientv3.Compare(clientv3.CreateRevision(head), "=", 0)
	}
	response, err := c.clients[j.stream%len(c.clients)].Txn(ctx).If(expected).Then(
		clientv3.OpPut(head, strconv.FormatUint(j.sequence, 10)),
		clientv3.OpPut(receipt, request),
		clientv3.OpPut(fmt.Sprintf("w/%s/%d", j.client(), j.sequence), string(j.payload)),
	).Else(clientv3.OpGet(receipt)).Commit()
	if err != nil {
		return answer{}, err
	}
	if response.Succeeded {
		return answer{reply: strconv.FormatInt(response.Header.Revision, 10)}, nil
	}
	stored := response.Responses[0].GetResponseRange().GetKvs()
	if len(stored) != 1 || string(stored[0].Value) != request {
		return answer{}, errors.New("refused: another request has this sequence, or a gap")
	}
	return answer{reply: strconv.FormatInt(stored[0].ModRevision, 10), replayed: true}, nil
}

func (c *etcdConn) close() error {
	var err error
	for _, one := range c.clients {
		err = errors.Join(err, one.Close())
	}
	return err
}
