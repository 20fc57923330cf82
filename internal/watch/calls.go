package watch

import "fmt"

// callsDiffer finds ranks whose calls of one number differ.
func callsDiffer(ranks []Rank) (Verdict, bool) {
	for i, r := range ranks {
		texts := make([]string, len(ranks))
		differ := false
		for j, other := range ranks {
			if r.Status != nil && r.Call > 0 && other.Status != nil && other.Call == r.Call {
				texts[j] = call(other.Status)
				differ = differ || j < i && other.CallText != r.CallText
			}
		}
		if !differ {
			continue
		}
		odd, _ := OddCall(texts)
		for rest, text := range texts {
			if text != "" && text != texts[odd] {
				return Verdict{Culprit: odd, Text: fmt.Sprintf("rank %d makes %s; rank %d makes %s: all ranks must make the same calls in the same order", odd, texts[odd], rest, text)}, true
			}
		}
	}
	return Verdict{}, false
}

// OddCall returns the rank whose call the fewest ranks make. Of several it prefers one whose call is not the first rank's.
// Calls that are not known are "". sure is set if all others make one call, and are two at least.
func OddCall(texts []string) (odd int, sure bool) {
	count, known, most, first := map[string]int{}, 0, 0, ""
	for _, t := range texts {
		if t == "" {
			continue
		}
		if known++; known == 1 {
			first = t
		}
		count[t]++
		most = max(most, count[t])
	}
	odd = -1
	for i, t := range texts {
		if t != "" && (odd < 0 || count[t] < count[texts[odd]] || count[t] == count[texts[odd]] && texts[odd] == first && t != first) {
			odd = i
		}
	}
	return odd, known >= 3 && most == known-1
}

// call names a rank's last call.
func call(s *Status) string {
	if s.CallText == "" {
		return fmt.Sprintf("call %d", s.Call)
	}
	return fmt.Sprintf("call %d, %s", s.Call, s.CallText)
}
