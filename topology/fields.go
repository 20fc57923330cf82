package topology

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// checkFields returns the error of the first value of a JSON document that does not fit the
// type it is for, and tells its place, such as gpus[3].index. Package json tells Go's types and
// no index, takes fields in any case, and merges a field that is there twice.
func checkFields(document []byte, of reflect.Type) error {
	in := json.NewDecoder(bytes.NewReader(document))
	in.UseNumber()
	c := fieldCheck{in: in}
	return c.next(of)
}

// fieldCheck is where a check of fields is.
type fieldCheck struct {
	in   *json.Decoder
	path []step
}

// step leads to a field of an object, or to an element of an array.
type step struct {
	field string // empty for an element
	index int
}

// at returns the place of the value under way.
func (c *fieldCheck) at() string {
	if len(c.path) == 0 {
		return "it"
	}
	var b strings.Builder
	for i, s := range c.path {
		switch {
		case s.field == "":
			fmt.Fprintf(&b, "[%d]", s.index)
		case i > 0:
			b.WriteString("." + s.field)
		default:
			b.WriteString(s.field)
		}
	}
	return b.String()
}

// next checks the next value of the document.
func (c *fieldCheck) next(of reflect.Type) error {
	token, err := c.in.Token()
	if err != nil {
		return err
	}
	if of.Kind() == reflect.Pointer {
		if token == nil {
			return nil
		}
		of = of.Elem()
	}
	want := ""
	switch of.Kind() {
	case reflect.Struct:
		if token == json.Delim('{') {
			return c.object(of)
		}
		want = "an object"
	case reflect.Slice:
		switch token {
		case json.Delim('['):
			return c.array(of.Elem())
		case nil:
			return nil
		}
		want = "an array"
	case reflect.String:
		if _, ok := token.(string); ok {
			return nil
		}
		want = "a string"
	case reflect.Bool:
		if _, ok := token.(bool); ok {
			return nil
		}
		want = "true or false"
	case reflect.Int:
		if n, ok := token.(json.Number); ok {
			_, err := strconv.Atoi(n.String())
			return c.number(n, err)
		}
		want = "a whole number"
	case reflect.Float64:
		if n, ok := token.(json.Number); ok {
			_, err := n.Float64()
			return c.number(n, err)
		}
		want = "a number"
	}
	return fmt.Errorf("%s is %s, not %s", c.at(), describe(token), want)
}

// object checks an object behind its brace.
func (c *fieldCheck) object(of reflect.Type) error {
	seen := map[string]bool{}
	for c.in.More() {
		token, err := c.in.Token()
		if err != nil {
			return err
		}
		name, _ := token.(string)
		field, known := fieldOf(of, name)
		switch {
		case !known:
			return fmt.Errorf("%s has an unknown field %.40q", c.at(), name)
		case seen[name]:
			return fmt.Errorf("%s has the field %q twice", c.at(), name)
		}
		seen[name] = true
		if err := c.inside(step{field: name}, field); err != nil {
			return err
		}
	}
	_, err := c.in.Token() // the closing brace
	return err
}

// array checks an array behind its bracket.
func (c *fieldCheck) array(of reflect.Type) error {
	for i := 0; c.in.More(); i++ {
		if err := c.inside(step{index: i}, of); err != nil {
			return err
		}
	}
	_, err := c.in.Token() // the closing bracket
	return err
}

// inside checks the value to which a step leads.
func (c *fieldCheck) inside(s step, of reflect.Type) error {
	c.path = append(c.path, s)
	defer func() { c.path = c.path[:len(c.path)-1] }()
	return c.next(of)
}

// number returns the error of a number that cannot be parsed as what it is for.
func (c *fieldCheck) number(n json.Number, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("%s is %.40s, which is out of range", c.at(), n)
	}
	return fmt.Errorf("%s is %.40s, not a whole number in digits", c.at(), n)
}

// fieldOf returns the type of the field that a struct has for a name in JSON.
func fieldOf(of reflect.Type, name string) (reflect.Type, bool) {
	for i := range of.NumField() {
		if tag, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); tag == name {
			return of.Field(i).Type, true
		}
	}
	return nil, false
}

// describe returns what a value of JSON is, by its first token.
func describe(token json.Token) string {
	switch t := token.(type) {
	case nil:
		return "null"
	case json.Delim:
		if t == '{' {
			return "an object"
		}
		return "an array"
	case string:
		return "a string"
	case bool:
		return strconv.FormatBool(t)
	}
	return "a number"
}
