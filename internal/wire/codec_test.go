package wire

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type inner struct {
	peer int    `wire:"signed"`
	name string `wire:"4,text"`
}

type outer struct {
	on     bool
	kind   uint8
	port   uint16
	number uint64
	half   float64
	rank   int
	lasted time.Duration
	id     [3]byte
	one    inner
	data   []byte  `wire:"5"`
	many   []inner `wire:"2"`
	words  []uint32
	pair   [2]string `wire:"3"`
	names  []string  `wire:"2,3"`
	Cause  error     `wire:"-"`
}

var outers = For[outer]()

func TestCodec(t *testing.T) {
	v := outer{on: true, kind: 7, port: 1 << 15, number: 1 << 63, half: -0.5, rank: 1 << 30, lasted: time.Hour, id: [3]byte{1, 2, 3},
		one: inner{-1, "x"}, data: []byte("12345"), many: []inner{{2, "a"}, {3, ""}}, words: []uint32{4, 5}, pair: [2]string{"a", "b"}, names: []string{"c", "d"}}
	got, err := outers.Unmarshal(outers.Marshal(&v))
	if diff := cmp.Diff(v, got, cmp.AllowUnexported(outer{}, inner{})); err != nil || diff != "" {
		t.Errorf("%v; decoded (-want +got):\n%s", err, diff)
	}
	// What is beyond the limits is cut.
	v.one.name, v.lasted, v.data, v.many, v.pair[1], v.names[1] = "abc\x1bef", -1, []byte("1234567"), make([]inner, 3), "long", "long"
	if got, err = outers.Unmarshal(outers.Marshal(&v)); err != nil || got.one.name != "abc?" || got.lasted != 0 || string(got.data) != "12345" || len(got.many) != 2 || got.pair[1]+got.names[1] != "lonlon" {
		t.Errorf("%v, %+v", err, got)
	}
	v.lasted = 1<<62 + 1
	if got, err = outers.Unmarshal(outers.Marshal(&v)); err != nil || got.lasted != maxDuration {
		t.Errorf("%v, %+v", err, got)
	}
}

func TestCodecVersion(t *testing.T) {
	v := outer{rank: 5}
	b := outers.MarshalVersion(3, &v)
	if got, err := outers.UnmarshalVersion(3, b); err != nil || got.rank != 5 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := outers.UnmarshalVersion(4, append(b, 0)); err == nil || err.Error() != "it is of version 3, this build reads version 4" {
		t.Errorf("of another version: %v", err)
	}
	if _, err := outers.UnmarshalVersion(3, nil); err == nil {
		t.Error("no bytes are decoded")
	}
}

// TestCodecRefuses decodes what no Codec has written.
func TestCodecRefuses(t *testing.T) {
	type loose struct {
		Rank int `wire:"signed"`
		Data []byte
		Many []inner
	}
	type tight struct {
		Rank int
		Data []byte  `wire:"2"`
		Many []inner `wire:"1"`
	}
	write, read := For[loose](), For[tight]()
	for name, v := range map[string]loose{
		"a negative int":    {Rank: -1},
		"too many bytes":    {Data: []byte("123")},
		"too many elements": {Many: make([]inner, 2)},
	} {
		if got, err := read.Unmarshal(write.Marshal(&v)); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	right := write.Marshal(&loose{Rank: 1, Data: []byte("12"), Many: make([]inner, 1)})
	if _, err := read.Unmarshal(right); err != nil {
		t.Error(err)
	}
	for n := range right {
		if _, err := read.Unmarshal(right[:n]); err == nil {
			t.Errorf("%d bytes of %d", n, len(right))
		}
	}
	if _, err := read.Unmarshal(append(right, 0)); err == nil {
		t.Error("a byte too many")
	}
}

// TestCodecPanics has types without an encoding.
func TestCodecPanics(t *testing.T) {
	for name, make := range map[string]func(){
		"map":   func() { For[struct{ m map[int]int }]() },
		"int64": func() { For[struct{ n int64 }]() },
		"func":  func() { For[struct{ f func() }]() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s has an encoding", name)
				}
			}()
			make()
		}()
	}
}

func FuzzCodec(f *testing.F) {
	f.Add(outers.Marshal(&outer{one: inner{-1, "x"}, data: []byte("123"), many: make([]inner, 1), words: []uint32{4}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := outers.Unmarshal(b)
		if err != nil {
			return
		}
		again, err := outers.Unmarshal(outers.Marshal(&v))
		if diff := cmp.Diff(v, again, cmp.AllowUnexported(outer{}, inner{})); err != nil || diff != "" && v.half == v.half {
			t.Errorf("%v; decoded again (-want +got):\n%s", err, diff)
		}
	})
}
