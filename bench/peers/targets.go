package main

import "fmt"

// verdict is a mark and whether it was reached.
type verdict struct {
	Target  string  `json:"target"`
	Want    float64 `json:"want"`
	AtMost  bool    `json:"at_most"` // want is a ceiling, not a floor
	Got     float64 `json:"got"`
	Low     float64 `json:"low"`
	High    float64 `json:"high"`
	Verdict string  `json:"verdict"` // reached, missed, not measured
}

// mark is a speed relative to a peer.
type mark struct {
	peer string
	row  row
	want float64
}

// marks are the targets for seqledger.
func marks() []mark {
	var list []mark
	add := func(r row, wants map[string]float64) {
		for _, peer := range []string{"postgres", "etcd", "nats", "redis"} {
			if want, ok := wants[peer]; ok {
				list = append(list, mark{peer, r, want})
			}
		}
	}
	add(row{"fresh", 1, false, smallPayload}, map[string]float64{"postgres": 1.2, "etcd": 3, "nats": 1.2, "redis": 0.9})
	add(row{"fresh", 64, false, smallPayload}, map[string]float64{"postgres": 8, "etcd": 8, "nats": 5, "redis": 1.5})
	add(row{"fresh", 256, false, smallPayload}, map[string]float64{"postgres": 12, "etcd": 10, "nats": 10, "redis": 2})
	add(row{"fresh", 1024, true, smallPayload}, map[string]float64{"postgres": 10, "redis": 1.2})
	add(row{"retry-hot", 64, false, smallPayload}, map[string]float64{"postgres": 3, "redis": 1})
	return list
}

// judge holds the findings against the marks.
func (f *findings) judge() []verdict {
	var list []verdict
	speed := func(s *sample) float64 { return s.perSecond }
	for _, m := range marks() {
		c, ok := f.compare("seqledger", m.peer, m.row, speed)
		list = append(list, newVerdict(fmt.Sprintf("%s: seqledger / %s", m.row.name(), m.peer), m.want, false, c, ok))
	}
	c, ok := f.compare("seqledger-inprocess", "floor", row{"fresh", 1, false, smallPayload},
		func(s *sample) float64 { return s.p50 })
	list = append(list, newVerdict("fresh/1: median latency in process / bare append and fdatasync", 1.3, true, c, ok))
	many := cell{row{"fresh", 256, false, smallPayload}, "seqledger-inprocess"}
	for _, bytes := range []struct {
		name  string
		want  float64
		value func(*sample) float64
	}{
		{"fresh/256: bytes of log / bytes of payload, in process", 2.5,
			func(s *sample) float64 { return s.log / smallPayload }},
		{"fresh/256: all bytes to the disk / bytes of payload, in process", 6,
			func(s *sample) float64 { return s.disk / smallPayload }},
	} {
		all := values(f.samples[many], bytes.value)
		var c ratio
		if len(all) > 0 {
			c.Median = median(all)
			c.Low, c.High, _ = interval(all)
		}
		list = append(list, newVerdict(bytes.name, bytes.want, true, c, len(all) > 0))
	}
	return list
}

func newVerdict(target string, want float64, atMost bool, c ratio, measured bool) verdict {
	v := verdict{Target: target, Want: want, AtMost: atMost, Got: c.Median, Low: c.Low, High: c.High,
		Verdict: "reached"}
	switch {
	case !measured:
		v.Verdict = "not measured"
	case atMost && v.Got > want, !atMost && v.Got < want:
		v.Verdict = "MISSED"
	}
	return v
}

// cheats returns the rows in which a system synced less often than one sync for all waiting
// callers explains.
func cheats(rows []rowResult) []string {
	var list []string
	for i := range rows {
		r := &rows[i]
		if r.Workload != "fresh" || r.SyncsPerWrite == nil {
			continue
		}
		// A tenth less is what begins and ends outside the time that is counted.
		if least := 0.9 / float64(r.Writers); *r.SyncsPerWrite < least {
			list = append(list, fmt.Sprintf("%s, %d writers: %.5f syncs per write, at least %.5f are needed",
				r.System, r.Writers, *r.SyncsPerWrite, least))
		}
	}
	return list
}
