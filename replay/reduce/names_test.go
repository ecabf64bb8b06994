package reduce

import "testing"

func TestNodesGetNamesThatTheGrammarTakes(t *testing.T) {
	n := newNames()
	for _, tc := range [][2]string{
		{"prefill-0/1", "prefill_0/1"}, {"prefill_0/0", "prefill_0_2/0"}, {"prefill-0/2", "prefill_0/2"}, {"10.0.0.1:5000/0", "n10_0_0_1_5000/0"}, {"order/0", "order_/0"},
	} {
		if have := n.rank(tc[0]); have != tc[1] {
			t.Errorf("%s is %s, want %s", tc[0], have, tc[1])
		}
	}
}
