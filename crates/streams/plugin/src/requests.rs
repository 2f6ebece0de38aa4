//! Requests that a thread serves, told by what it does to sockets.
//!
//! A request begins when a read from a connection that the process accepted has returned data, and ends
//! with the next write to any such connection by the same thread. Data of the same connection in
//! between is more of the request; data of another one ends it, as the answer is then only waiting to be
//! written (event loops that answer all at once do so). A thread that waits for what is ready
//! (`epoll_wait`, `poll`, `select`) within a request has handed it to another or lacks part of it: that
//! request is dropped.
//!
//! Connections that the process opened itself are none of a server: a client's queries are no
//! requests, nor what a server asks of another.

use crate::calls::{Call, failed};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use strata_stream::Mark;

/// File descriptors that are watched: the usual hard limit on them (`fs.nr_open`) is higher, but a server
/// rarely has more open.
const DESCRIPTORS: usize = 1 << 16;

thread_local! {
    /// The connection whose request this thread serves.
    static SERVING: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Which file descriptors are connections that the process accepted.
#[derive(Debug)]
pub struct Connections(Box<[AtomicU64; DESCRIPTORS / 64]>);

impl Default for Connections {
    fn default() -> Self {
        Self(Box::new([const { AtomicU64::new(0) }; DESCRIPTORS / 64]))
    }
}

impl Connections {
    fn has(&self, descriptor: u64) -> bool {
        let word = self.0.get(descriptor as usize / 64);
        word.is_some_and(|word| word.load(Relaxed) >> (descriptor % 64) & 1 == 1)
    }

    fn set(&self, descriptor: u64, accepted: bool) {
        let Some(word) = self.0.get(descriptor as usize / 64) else { return };
        let bit = 1 << (descriptor % 64);
        if accepted {
            word.fetch_or(bit, Relaxed);
        } else {
            word.fetch_and(!bit, Relaxed);
        }
    }

    /// A system call is about to be made by the calling thread. Gives what is to be told of a request, and
    /// whether the call is to be looked at again when it has returned.
    pub fn before(&self, call: &Call) -> (Option<Mark>, bool) {
        let [descriptor, second, ..] = call.args;
        // The kernel takes an `int`.
        let descriptor = u64::from(descriptor as u32);
        match call.number {
            libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_dup
            | libc::SYS_dup2
            | libc::SYS_dup3
            | libc::SYS_fcntl => (None, self.has(descriptor)),
            libc::SYS_accept | libc::SYS_accept4 => (None, true),
            libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_sendfile
                if self.has(descriptor) =>
            {
                (SERVING.take().map(|_| Mark::End), false)
            }
            libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_poll
            | libc::SYS_ppoll
            | libc::SYS_select
            | libc::SYS_pselect6 => {
                SERVING.set(None);
                (None, false)
            }
            // Before the call: once it is closed another thread may get the same number.
            libc::SYS_close => {
                self.set(descriptor, false);
                (None, false)
            }
            libc::SYS_close_range => {
                let last = u64::from(second as u32).min(DESCRIPTORS as u64 - 1);
                (descriptor..=last).for_each(|descriptor| self.set(descriptor, false));
                (None, false)
            }
            _ => (None, false),
        }
    }

    /// A call that was to be looked at again has returned. Gives what is to be told, in order.
    pub fn after(&self, call: &Call, result: i64) -> [Option<Mark>; 2] {
        let [descriptor, second, ..] = call.args;
        let (descriptor, second) = (u64::from(descriptor as u32), second as u32);
        if failed(result) {
            return [None, None];
        }
        match call.number {
            libc::SYS_accept | libc::SYS_accept4 | libc::SYS_dup => self.set(result as u64, true),
            libc::SYS_dup2 | libc::SYS_dup3 => self.set(second.into(), true),
            libc::SYS_fcntl => {
                let duplicates = [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC];
                if duplicates.contains(&second.cast_signed()) {
                    self.set(result as u64, true);
                }
            }
            _ if result > 0 => {
                let before = SERVING.replace(Some(descriptor));
                let is_more = before == Some(descriptor);
                return [
                    before.filter(|_| !is_more).map(|_| Mark::End),
                    (!is_more).then_some(Mark::Begin),
                ];
            }
            _ => {}
        }
        [None, None]
    }
}

/// The calling thread serves nothing: it is the first of a new process.
pub fn forget() {
    SERVING.set(None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Makes calls and keeps what is told.
    #[derive(Default)]
    struct Server {
        connections: Connections,
        told: RefCell<Vec<Mark>>,
    }

    impl Server {
        fn new() -> Self {
            forget();
            Self::default()
        }

        fn call(&self, number: i64, args: [u64; 2], result: i64) -> &Self {
            let call = Call { number, args: [args[0], args[1], 0, 0, 0, 0] };
            let (told, again) = self.connections.before(&call);
            let after = if again { self.connections.after(&call, result) } else { [None, None] };
            self.told.borrow_mut().extend([told].into_iter().chain(after).flatten());
            self
        }

        fn accept(&self, descriptor: i64) -> &Self {
            self.call(libc::SYS_accept4, [3, 0], descriptor)
        }

        fn read(&self, descriptor: u64, result: i64) -> &Self {
            self.call(libc::SYS_read, [descriptor, 0], result)
        }

        fn write(&self, descriptor: u64) -> &Self {
            self.call(libc::SYS_sendmsg, [descriptor, 0], 9)
        }

        fn wait(&self) -> &Self {
            self.call(libc::SYS_epoll_wait, [5, 0], 1)
        }

        fn told(&self) -> String {
            let letter = |mark: &Mark| if *mark == Mark::Begin { 'B' } else { 'E' };
            self.told.take().iter().map(letter).collect()
        }
    }

    #[test]
    fn a_request_is_from_what_is_read_to_what_is_written() {
        let server = Server::new();
        server.accept(7).wait().read(7, 40).write(7).read(7, -11).wait().read(7, 12).write(7);
        assert_eq!(server.told(), "BEBE");
        // A request in pieces is one; the end of the connection is none.
        server.read(7, 10).read(7, 10).write(7).write(7).read(7, 0);
        assert_eq!(server.told(), "BE");
    }

    #[test]
    fn what_others_sent_is_the_next_request() {
        let server = Server::new();
        server.accept(7).accept(8).wait().read(7, 40).read(8, 40).write(7).write(8).wait();
        assert_eq!(server.told(), "BEBE");
    }

    #[test]
    fn a_request_that_waits_is_dropped() {
        let server = Server::new();
        server.accept(7).read(7, 40).wait().write(7).read(7, 9).write(7);
        assert_eq!(server.told(), "BBE");
    }

    #[test]
    fn files_pipes_and_own_connections_are_none() {
        let server = Server::new();
        server.read(0, 40).write(1).call(libc::SYS_connect, [9, 0], 0).write(9).read(9, 40);
        server.accept(7).call(libc::SYS_close, [7, 0], 0).read(7, 40).write(7);
        server.accept(-24).read(1 << 20, 4).write(u64::MAX);
        assert_eq!(server.told(), "");
    }

    #[test]
    fn copies_of_a_connection_are_connections() {
        let copies = [
            (libc::SYS_dup, [7, 0], 11),
            (libc::SYS_dup2, [7, 11], 11),
            (libc::SYS_fcntl, [7, libc::F_DUPFD_CLOEXEC as u64], 11),
        ];
        for (number, args, result) in copies {
            let server = Server::new();
            server.accept(7).call(number, args, result).read(11, 40).write(11);
            assert_eq!(server.told(), "BE", "{number}");
            server.call(libc::SYS_close_range, [3, u64::from(u32::MAX)], 0).read(11, 40);
            assert_eq!(server.told(), "");
        }
        let server = Server::new();
        server.accept(7).call(libc::SYS_fcntl, [7, libc::F_GETFL as u64], 2).read(2, 40);
        assert_eq!(server.told(), "");
    }
}
