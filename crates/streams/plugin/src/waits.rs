//! System calls that concern devices or other threads: which asked a device for something, which waited, which
//! woke others.
//!
//! Whether a call waited is what the kernel counted: a thread that gives its processor up by itself has one
//! voluntary change of context more (`getrusage(2)`, `ru_nvcsw`). The emulator's calls are the kernel's own, so
//! that it is true of the program as it runs here: with the page cache, the disk and the network of this machine.
//!
//! | call | seen as |
//! | --- | --- |
//! | reads, writes or syncs a file, and waits | a request that is awaited |
//! | the same without waiting | nothing: the page cache has it |
//! | sends to another machine | a request |
//! | anything else that waits | waiting |
//! | wakes threads by a futex | one woken for each |
//!
//! Not seen are `io_uring` and whom a write to a pipe, a socket of this machine or an event descriptor wakes.

use crate::calls::{self, Call, failed};
use std::cell::Cell;
use std::mem::{MaybeUninit, size_of};
use strata_stream::Call as Seen;

thread_local! {
    /// The call that this thread is in, and its voluntary changes of context before.
    static IN: Cell<Option<(Call, i64)>> = const { Cell::new(None) };
}

/// Threads told of that one call woke, at most: a call that wakes all is about what follows.
const MOST_WOKEN: i64 = 64;

/// What a file descriptor is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// A file, or a disk as such.
    File,
    /// A connection to another machine, or a socket that may send to one.
    Network,
    /// Anything else.
    Other,
}

/// The call is about to be made by the calling thread.
pub fn before(call: &Call) {
    let is_of_interest = !calls::is_private(call.number)
        && !calls::changes_space(call.number)
        && !matches!(
            call.number,
            libc::SYS_fork
                | libc::SYS_vfork
                | libc::SYS_clone
                | libc::SYS_execve
                | libc::SYS_execveat
                | libc::SYS_exit
                | libc::SYS_exit_group
        );
    IN.set(is_of_interest.then(|| (*call, changes_of_context())));
}

/// The call that the thread is in has returned. Gives what there is to tell, in order.
pub fn after(result: i64) -> impl Iterator<Item = Seen> {
    let told = IN.take().map(|(call, changes)| {
        let waited = changes_of_context() > changes;
        (seen(&call, result, waited, of_descriptor), woken(&call, result))
    });
    let (seen, woken) = told.unwrap_or((None, 0));
    seen.into_iter().chain((0..woken).map(|_| Seen::Wake))
}

/// The calling thread is in no call: it is the first of a new process.
pub fn forget() {
    IN.set(None);
}

/// What a call was.
fn seen(call: &Call, result: i64, waited: bool, of: impl Fn(u64) -> Of) -> Option<Seen> {
    // The kernel takes an `int`.
    let descriptor = u64::from(call.args[0] as u32);
    let wait = waited.then_some(Seen::Wait);
    match call.number {
        libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_sync
        | libc::SYS_syncfs
        | libc::SYS_sync_file_range
        | libc::SYS_msync => waited.then_some(Seen::AwaitedRequest),
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_pread64
        | libc::SYS_preadv
        | libc::SYS_preadv2
            if waited =>
        {
            Some(if of(descriptor) == Of::File { Seen::AwaitedRequest } else { Seen::Wait })
        }
        libc::SYS_getdents | libc::SYS_getdents64 => waited.then_some(Seen::AwaitedRequest),
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwrite64
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_sendfile => match of(descriptor) {
            Of::File => waited.then_some(Seen::AwaitedRequest),
            Of::Network if !failed(result) => Some(Seen::Request),
            _ => wait,
        },
        _ => wait,
    }
}

/// How many threads a call woke.
fn woken(call: &Call, result: i64) -> i64 {
    let [_, operation, ..] = call.args;
    let wakes = matches!(
        operation as i32 & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME),
        libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET | libc::FUTEX_WAKE_OP
    );
    match call.number {
        libc::SYS_futex if wakes && !failed(result) => result.clamp(0, MOST_WOKEN),
        _ => 0,
    }
}

/// Voluntary changes of context of the calling thread.
fn changes_of_context() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills what it is given, and zeroes are a value of the structure.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nvcsw
}

/// What a descriptor of this process is of.
fn of_descriptor(descriptor: u64) -> Of {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: as above.
    let (done, status) = unsafe {
        let done = libc::fstat(descriptor as i32, status.as_mut_ptr());
        (done, status.assume_init())
    };
    match status.st_mode & libc::S_IFMT {
        _ if done != 0 => Of::Other,
        libc::S_IFREG | libc::S_IFBLK | libc::S_IFDIR => Of::File,
        libc::S_IFSOCK if reaches_others(descriptor as i32) => Of::Network,
        _ => Of::Other,
    }
}

/// Whether what is sent to a socket may leave the machine.
fn reaches_others(descriptor: i32) -> bool {
    let mut address = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the kernel fills at most as many bytes as it is told, and zeroes are a value of the structure.
    let (done, address) = unsafe {
        let done = libc::getpeername(descriptor, address.as_mut_ptr().cast(), &raw mut length);
        (done, address.assume_init())
    };
    if done == 0 {
        return is_of_others(&address);
    }
    let mut domain = 0;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `domain` is as long as `length` says.
    let done = unsafe {
        let value = (&raw mut domain).cast();
        libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_DOMAIN, value, &raw mut length)
    };
    // Not connected: whoever an address names that it is told with each message.
    done == 0 && matches!(domain, libc::AF_INET | libc::AF_INET6)
}

/// Whether an address is another machine's.
fn is_of_others(address: &libc::sockaddr_storage) -> bool {
    let bytes = std::ptr::from_ref(address);
    match i32::from(address.ss_family) {
        libc::AF_INET => {
            // SAFETY: storage is large enough and aligned for every kind of address.
            let address = unsafe { &*bytes.cast::<libc::sockaddr_in>() };
            !std::net::Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).is_loopback()
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { &*bytes.cast::<libc::sockaddr_in6>() };
            let address = std::net::Ipv6Addr::from(address.sin6_addr.s6_addr);
            !address.to_canonical().is_loopback()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    fn call(number: i64, args: [u64; 2]) -> Call {
        Call { number, args: [args[0], args[1], 0, 0, 0, 0] }
    }

    #[test]
    fn what_a_call_was_depends_on_what_it_is_of_and_whether_it_waited() {
        use Seen::{AwaitedRequest, Request, Wait};
        let seen = |number, of, waited| seen(&call(number, [3, 0]), 1, waited, |_| of);
        for number in [libc::SYS_read, libc::SYS_pread64, libc::SYS_write, libc::SYS_pwritev2] {
            assert_eq!(seen(number, Of::File, false), None, "the page cache has it");
            assert_eq!(seen(number, Of::File, true), Some(AwaitedRequest));
            assert_eq!(seen(number, Of::Other, true), Some(Wait));
            assert_eq!(seen(number, Of::Other, false), None);
        }
        for waited in [false, true] {
            assert_eq!(seen(libc::SYS_sendmsg, Of::Network, waited), Some(Request));
        }
        assert_eq!(seen(libc::SYS_recvfrom, Of::Network, true), Some(Wait));
        assert_eq!(seen(libc::SYS_recvfrom, Of::Network, false), None);
        assert_eq!(seen(libc::SYS_fdatasync, Of::File, true), Some(AwaitedRequest));
        assert_eq!(seen(libc::SYS_fdatasync, Of::File, false), None, "nothing to write");
        for number in [libc::SYS_nanosleep, libc::SYS_epoll_wait, libc::SYS_wait4, libc::SYS_futex]
        {
            assert_eq!(seen(number, Of::Other, true), Some(Wait));
            assert_eq!(seen(number, Of::Other, false), None);
        }
    }

    #[test]
    fn a_futex_wakes_as_many_as_it_says() {
        let woken =
            |operation: i32, result| woken(&call(libc::SYS_futex, [0, operation as u64]), result);
        assert_eq!(woken(libc::FUTEX_WAKE, 2), 2);
        assert_eq!(woken(libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1), 1);
        assert_eq!(woken(libc::FUTEX_WAKE, 0), 0);
        assert_eq!(woken(libc::FUTEX_WAKE, -22), 0);
        assert_eq!(woken(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 0), 0);
        assert_eq!(woken(libc::FUTEX_WAKE, 100_000), MOST_WOKEN);
    }

    #[test]
    fn a_thread_that_sleeps_waits_and_one_that_asks_the_time_does_not() {
        let told = |number, act: &dyn Fn()| -> Vec<Seen> {
            before(&call(number, [0, 0]));
            act();
            after(0).collect()
        };
        let sleep = || std::thread::sleep(Duration::from_millis(5));
        assert_eq!(told(libc::SYS_nanosleep, &sleep), [Seen::Wait]);
        assert_eq!(told(libc::SYS_nanosleep, &|| {}), []);
        // Not of interest, whatever it does.
        assert_eq!(told(libc::SYS_mmap, &sleep), []);
        assert_eq!(after(0).count(), 0, "there is no call");
    }

    #[test]
    fn descriptors_are_told_apart() {
        let of = |descriptor: &dyn AsRawFd| of_descriptor(descriptor.as_raw_fd() as u64);
        assert_eq!(of(&std::fs::File::open("/proc/self/exe").unwrap()), Of::File);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(of(&near), Of::Other, "of this machine");
        assert_eq!(of(&UdpSocket::bind("127.0.0.1:0").unwrap()), Of::Network, "may send anywhere");
        let (pipe, _) = std::io::pipe().unwrap();
        assert_eq!(of(&pipe), Of::Other);
        assert_eq!(of_descriptor(1 << 20), Of::Other);
    }

    #[test]
    fn addresses_of_this_machine_are_nobody_elses() {
        let of = |text: &str| {
            let mut storage = MaybeUninit::<libc::sockaddr_storage>::zeroed();
            // SAFETY: zeroes are a value, and each kind of address fits.
            unsafe {
                match text.parse().unwrap() {
                    std::net::IpAddr::V4(ip) => {
                        let address = storage.as_mut_ptr().cast::<libc::sockaddr_in>();
                        (*address).sin_family = libc::AF_INET as u16;
                        (*address).sin_addr.s_addr = u32::from(ip).to_be();
                    }
                    std::net::IpAddr::V6(ip) => {
                        let address = storage.as_mut_ptr().cast::<libc::sockaddr_in6>();
                        (*address).sin6_family = libc::AF_INET6 as u16;
                        (*address).sin6_addr.s6_addr = ip.octets();
                    }
                }
                is_of_others(&storage.assume_init())
            }
        };
        for near in ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(!of(near), "{near}");
        }
        for far in ["10.0.0.1", "192.0.2.7", "2001:db8::1", "::ffff:192.0.2.7"] {
            assert!(of(far), "{far}");
        }
    }
}
