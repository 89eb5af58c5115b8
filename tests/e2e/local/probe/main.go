// probe is the one program of the image that the local cluster's tests run:
//
//	probe serve TEXT      answers every HTTP request on port 8080 with TEXT
//	probe fetch URL       prints the answer; exit code 1 if none comes within 2 s
//	probe count FILE      appends a line to FILE every 50 ms, for ever
//	probe write FILE TEXT / probe read FILE
//	probe burn SECONDS    computes on one core and prints the CPU seconds it got per second
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func fetch(url string) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(url)
	must(err)
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	must(err)
}

func count(file string) {
	for i := 0; ; i++ {
		out, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
		must(err)
		_, err = fmt.Fprintln(out, i)
		must(err)
		must(out.Close())
		time.Sleep(50 * time.Millisecond)
	}
}

func cpu() time.Duration {
	var used syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func burn(seconds float64) {
	began, before := time.Now(), cpu()
	limit := time.Duration(seconds * float64(time.Second))
	sum := 0
	for time.Since(began) < limit {
		for i := range 100000 {
			sum += i * i
		}
	}
	fmt.Printf("%.3f %d\n", float64(cpu()-before)/float64(time.Since(began)), sum&1)
}

func main() {
	arguments := os.Args[1:]
	switch arguments[0] {
	case "serve":
		must(http.ListenAndServe(":8080", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, arguments[1])
		})))
	case "fetch":
		fetch(arguments[1])
	case "count":
		count(arguments[1])
	case "write":
		must(os.WriteFile(arguments[1], []byte(arguments[2]), 0o666))
	case "read":
		raw, err := os.ReadFile(arguments[1])
		must(err)
		fmt.Print(string(raw))
	case "burn":
		seconds, err := strconv.ParseFloat(arguments[1], 64)
		must(err)
		burn(seconds)
	}
}
