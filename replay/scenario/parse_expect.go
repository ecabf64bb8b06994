package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pdlog/pdlog/events"
)

var (
	roomStates = []string{"unknown", "bootstrapping", "waiting", "transferring", "succeeded", "failed", "held", "quarantined", "released"}
	pageStates = []string{"free", "owned", "held", "quarantined", "fenced"}
	bases      = []string{"success", "acks", "never_published", "fence", "peer_restart", "forced", "timeout", "mixed"}
)

// checkExpect checks the form of an expectation; the first word or key after
// the node says which form it is.
func (p *parser) checkExpect(s *stmt) error {
	if len(s.words) == 0 {
		return errors.New("expect needs something to expect")
	}
	switch s.words[0] {
	case "order":
		return p.checkOrder(s)
	case "corruption":
		return p.checkCorruption(s)
	case "violations":
		if len(s.words) != 2 || len(s.keys) > 0 {
			return errors.New("violations needs a list such as I1,I2")
		}
		for _, i := range strings.Split(s.words[1], ",") {
			if !invRE.MatchString(i) {
				return fmt.Errorf("%q is no invariant", i)
			}
		}
		return nil
	}
	if err := p.checkNode(s.words[0]); err != nil {
		return err
	}
	if len(s.words) > 1 {
		if len(s.words) != 2 || len(s.keys) > 0 || !slices.Contains([]string{"idle", "ready", "notready"}, s.words[1]) {
			return fmt.Errorf("unknown word %q", s.words[1])
		}
		return nil
	}
	if len(s.order) == 0 {
		return errors.New("expect needs something to expect")
	}
	switch s.order[0] {
	case "room":
		return p.keys(s, "room", "state basis acks generation missing outstanding ack_targets")
	case "page", "aux":
		if s.keys["state"] == "" {
			return errors.New("a page needs state=")
		}
		if !slices.Contains(pageStates, s.keys["state"]) {
			return fmt.Errorf("unknown page state %q", s.keys["state"])
		}
		if err := p.keys(s, s.order[0], "state room"); err != nil {
			return err
		}
		return p.checkItem(s.words[0], s.order[0], s.keys[s.order[0]])
	case "rooms":
		_, err := parseInt(s.keys["rooms"], 0, 1<<30)
		if err == nil && len(s.order) > 1 {
			err = fmt.Errorf("unknown key %q", s.order[1])
		}
		return err
	case "event":
		return checkEvent(s)
	}
	return fmt.Errorf("unknown expectation %q", s.order[0])
}

func (p *parser) keys(s *stmt, first, optional string) error {
	opt := strings.Fields(optional)
	for _, k := range s.order {
		v := s.keys[k]
		if k != first && !slices.Contains(opt, k) {
			return fmt.Errorf("unknown key %q", k)
		}
		var err error
		switch k {
		case "room":
			_, err = parseRoom(v)
		case "page", "aux", "outstanding", "ack_targets":
			_, err = parseInt(v, 0, 1<<30)
		case "generation":
			_, err = strconv.ParseUint(v, 10, 63)
		case "state":
			if first == "room" && !slices.Contains(roomStates, v) {
				err = fmt.Errorf("unknown room state %q", v)
			}
		case "basis":
			err = oneOf(k, v, bases...)
		case "acks":
			a, b, ok := strings.Cut(v, "/")
			if !ok || !numRE.MatchString(a) || !numRE.MatchString(b) {
				err = fmt.Errorf("acks=%s is not of the form 1/2", v)
			}
		case "missing":
			_, err = p.parseRanks(v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func checkEvent(s *stmt) error {
	if err := checkType(s.keys["event"]); err != nil {
		return err
	}
	for _, k := range s.order {
		var err error
		switch k {
		case "event":
		case "room":
			_, err = parseRoom(s.keys[k])
		case "count":
			_, err = parseInt(s.keys[k], 0, 1<<30)
		default:
			if !keyRE.MatchString(k) || s.keys[k] == "" {
				err = fmt.Errorf("bad key %q", k)
			} else if !events.HasField(s.keys["event"], k) {
				err = fmt.Errorf("%s has no field %q", s.keys["event"], k)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func checkType(t string) error {
	if !typeRE.MatchString(t) || !slices.Contains(events.TypeNames(), t) {
		return fmt.Errorf("unknown event type %q", t)
	}
	return nil
}

func (p *parser) checkOrder(s *stmt) error {
	w := s.words[1:]
	if len(w) < 3 || len(w)%2 == 0 {
		return errors.New("order needs node:Type < node:Type")
	}
	for i, x := range w {
		if i%2 == 1 {
			if x != "<" {
				return fmt.Errorf("%q where < should stand", x)
			}
			continue
		}
		node, typ, ok := strings.Cut(x, ":")
		if !ok {
			return fmt.Errorf("%q is not of the form node:Type", x)
		}
		if err := p.checkNode(node); err != nil {
			return err
		}
		if err := checkType(typ); err != nil {
			return err
		}
	}
	for _, k := range s.order {
		if k != "room" {
			return fmt.Errorf("unknown key %q", k)
		}
		if _, err := parseRoom(s.keys[k]); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) checkCorruption(s *stmt) error {
	if len(s.words) == 2 && s.words[1] == "none" && len(s.keys) == 0 {
		return nil
	}
	if len(s.words) != 1 || s.keys["page"] == "" || s.keys["victim"] == "" {
		return errors.New("corruption needs none, or page= and victim=")
	}
	for _, k := range s.order {
		var err error
		switch k {
		case "page":
			_, err = parseInt(s.keys[k], 0, 1<<30)
		case "victim":
			if s.keys[k] != "none" {
				_, err = parseRoom(s.keys[k])
			}
		case "writer":
			err = p.parseRank(s.keys[k])
		case "room":
			if s.keys["writer"] == "" {
				err = errors.New("room= goes with writer=")
			} else {
				_, err = parseRoom(s.keys[k])
			}
		default:
			err = fmt.Errorf("unknown key %q", k)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
