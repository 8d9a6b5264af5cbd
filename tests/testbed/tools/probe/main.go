// probe shows from inside a pod that the cluster's network works.
//
//	probe serve ADDRESS        answer every connection with the host's name
//	probe ask ADDRESS SECONDS  connect, again until it succeeds or the time is over; print what comes within a second
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"time"
)

func main() {
	log.SetFlags(log.Lmicroseconds)
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		serve(os.Args[2])
	case len(os.Args) == 4 && os.Args[1] == "ask":
		seconds, err := strconv.Atoi(os.Args[3])
		if err != nil {
			log.Fatal(err)
		}
		ask(os.Args[2], time.Duration(seconds)*time.Second)
	default:
		log.Fatal("usage: probe serve ADDRESS | probe ask ADDRESS SECONDS")
	}
}

func serve(address string) {
	name, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Fprintln(connection, name)
		connection.Close()
	}
}

func ask(address string, patience time.Duration) {
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		connection, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			connection.SetReadDeadline(time.Now().Add(time.Second))
			answer, _ := io.ReadAll(connection)
			fmt.Print(string(answer))
			return
		}
		if time.Now().After(end) {
			log.Fatal(err)
		}
	}
}
