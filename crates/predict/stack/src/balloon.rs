//! Ballooning: the host takes memory of a guest and gives it back.
//!
//! A driver in the guest allocates pages and tells the host, which frees the frames behind them
//! (Waldspurger, OSDI'02, section 3.2; Linux 6.12, `drivers/virtio/virtio_balloon.c`). In a nested guest
//! it is the host's driver, not one of the guest hypervisor (xPlace 5.4): the guest hypervisor keeps its
//! mapping and knows of nothing, and the host finds the frame through the second stages that it shadows.
//! Under a policy of cache colours pages are taken and given back colour by colour, so that none is
//! drained.
//!
//! What is left out: the guest's kernel cannot move a page of the balloon (Linux can), and what the
//! driver itself does costs nothing.

use crate::costs::Spending;
use crate::kernel::Kernel;
use crate::owner::Owner;
use crate::policy::Policy;
use crate::ppm::Purpose;
use crate::stack::{KernelOutOfMemory, Stack};
use crate::tree::{NodeId, page_range};
use strata_addr::{Frame, PageSize, space::Lower, space::Upper};
use strata_colours::{Colour, Colours};

/// Pages that a driver tells the host of at once.
const PAGES_OF_EXIT: u64 = 256;

impl Stack {
    /// Takes so many pages of a guest's memory for the host, or gives them back if `pages` is negative.
    /// Returns how many that was: fewer where the guest has not so many free, or in its balloon.
    ///
    /// # Errors
    /// [`KernelOutOfMemory`], with the kernel.
    pub fn balloon(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        pages: i64,
    ) -> Result<u64, KernelOutOfMemory> {
        if guest == NodeId::HOST || !self.position(guest).is_guest() || pages == 0 {
            return Ok(0);
        }
        let order = policy.balloon_colours(self, guest);
        let of_host = self.kernel(NodeId::HOST).memory().colours();
        let own = self.nodes[guest].guest.cache.map(|cache| cache.colours);
        let colours = own.or(of_host).filter(|_| !order.is_empty());
        let wanted = pages.unsigned_abs();
        let mut done = 0;
        if pages > 0 {
            let mut out = vec![false; order.len().max(1)];
            while done < wanted && self.inflate(policy, guest, colours, &order, &mut out)? {
                done += 1;
            }
        } else {
            while done < wanted && self.deflate(guest, &order) {
                done += 1;
            }
        }
        let exits = done.div_ceil(PAGES_OF_EXIT);
        self.nodes[guest].kernel.frames.counters.balloon_exits += exits;
        self.spent.add(Spending::Background, exits * self.balloons.exit);
        self.settle(policy, guest, Spending::Background)?;
        Ok(done)
    }

    /// Pages in the balloon of a guest.
    pub fn ballooned(&self, guest: NodeId) -> u64 {
        self.nodes[guest].balloon.len()
    }

    /// The balloon of a guest has so many bytes when it is filled, whatever those of other guests have.
    pub fn set_balloon_size(&mut self, guest: NodeId, bytes: u64) {
        self.nodes[guest].balloon.size = Some(bytes);
    }

    fn balloon_size(&self, guest: NodeId) -> u64 {
        self.nodes[guest].balloon.size.unwrap_or(self.balloons.size.saturating_mul(1 << 20))
    }

    /// When the balloon of a guest is filled or emptied next, in seconds of simulated time.
    pub(crate) fn next_balloon(&self, guest: NodeId) -> f64 {
        match self.balloon_size(guest) {
            0 => f64::INFINITY,
            _ => self.nodes[guest].balloon.next,
        }
    }

    /// Fills or empties the balloon of a guest if it is time.
    pub(crate) fn balloon_if_due(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        now: f64,
    ) -> Result<(), KernelOutOfMemory> {
        if self.next_balloon(guest) > now {
            return Ok(());
        }
        self.nodes[guest].balloon.next = now + self.balloons.period;
        let size = (self.balloon_size(guest) >> PageSize::BASE_SHIFT) as i64;
        let filled = self.ballooned(guest) as i64;
        self.balloon(policy, guest, if filled > 0 { -filled } else { size })?;
        Ok(())
    }

    /// One page more in the balloon: of the colour that it has fewest of, of these the one first in `order`
    /// that is not `out` in the guest.
    fn inflate(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        colours: Option<Colours>,
        order: &[Colour<Lower>],
        out: &mut [bool],
    ) -> Result<bool, KernelOutOfMemory> {
        let node = &mut self.nodes[guest];
        let (kernel, balloon) = (&mut node.kernel, &mut node.balloon);
        if kernel.memory().free_frames() <= watermark(kernel.memory().frames()) {
            return Ok(false);
        }
        let bins = colours.map_or(1, |colours| colours.count() as usize);
        balloon.pages.resize(balloon.pages.len().max(bins), Vec::new());
        balloon.searched.resize(balloon.searched.len().max(bins), 0);
        let index = |at: usize| order.get(at).map_or(0, |colour| colour.index() as usize);
        let taken = loop {
            let places = (0..out.len()).filter(|at| !out[*at]);
            let Some(at) = places.min_by_key(|at| (balloon.pages[index(*at)].len(), *at)) else {
                return Ok(false);
            };
            let wanted = colours.zip(order.get(at).copied());
            match kernel.take_for_balloon(wanted, &mut balloon.searched[index(at)]) {
                Some(frame) => break (index(at), frame),
                None => out[at] = true,
            }
        };
        let (bin, frame) = taken;
        balloon.pages[bin].push(frame);
        kernel.set_owner(frame, Owner::Balloon);
        kernel.frames.counters.balloon_taken += 1;
        self.free_behind(policy, guest, frame.cross())?;
        Ok(true)
    }

    /// One page fewer: of the colour that it has most of, of these the one last in `order`.
    fn deflate(&mut self, guest: NodeId, order: &[Colour<Lower>]) -> bool {
        let node = &mut self.nodes[guest];
        let held = |bin: usize| node.balloon.pages[bin].len();
        let last = (0..node.balloon.pages.len()).filter(|bin| held(*bin) > 0).max_by_key(|bin| {
            let place = order.iter().position(|colour| colour.index() as usize == *bin);
            (held(*bin), place)
        });
        let frame = last.and_then(|bin| node.balloon.pages[bin].pop());
        if let Some(frame) = frame {
            node.kernel.give_back(frame, 0);
            node.kernel.frames.counters.balloon_returned += 1;
        }
        frame.is_some()
    }

    /// The page of a VM of the host that backs a page of a guest's memory, as far as all hypervisors between
    /// map it in their second stages.
    pub fn backed_by(&self, guest: NodeId, page: Frame<Upper>) -> Option<(NodeId, Frame<Upper>)> {
        let (mut at, mut vm) = (page, guest);
        loop {
            let below = self.below(vm)?;
            if below == NodeId::HOST {
                return Some((vm, at));
            }
            at = self.second_stage(vm).translate(at.addr())?.page().cross();
            vm = below;
        }
    }

    /// The host frees the frame behind a page of a guest's memory, if there is one.
    fn free_behind(
        &mut self,
        policy: &mut dyn Policy,
        guest: NodeId,
        page: Frame<Upper>,
    ) -> Result<(), KernelOutOfMemory> {
        let Some((vm, at)) = self.backed_by(guest, page) else { return Ok(()) };
        let (process, hva) = (self.vm_process(vm), self.hva(vm, at));
        let host = &mut self.nodes[NodeId::HOST].kernel;
        if host.frame_behind(process, hva).is_none() {
            return Ok(());
        }
        // A huge page that cannot be split for want of a page table stays as it is.
        if host.unmap_range(process, page_range(hva, 1)).is_ok() {
            host.frames.counters.balloon_freed += 1;
        }
        self.settle(policy, NodeId::HOST, Spending::Background)
    }
}

impl Kernel {
    /// Takes a free frame for a balloon, of this colour if one is wanted. A memory that does not know its
    /// colours is searched from `from` on.
    fn take_for_balloon(
        &mut self,
        wanted: Option<(Colours, Colour<Lower>)>,
        from: &mut u64,
    ) -> Option<Frame<Lower>> {
        let Some((colours, colour)) = wanted else { return self.frames.base_page(Purpose::Kernel) };
        if self.frames.memory.colours().is_some() {
            return self.frames.memory.take_coloured(colour);
        }
        let frames = self.frames.memory.frames();
        let found = (0..frames)
            .map(|i| Frame::new((*from + i) % frames))
            .find(|frame| colours.of(*frame) == colour && self.frames.memory.is_free(*frame, 0))?;
        *from = found.get() + 1;
        self.take(0, Some(found))
    }
}

/// Free frames that a kernel keeps from drivers that can do without: `min_free_kbytes`, 4 times the root
/// of its memory in KiB, within limits (Linux 6.12, `calculate_min_free_kbytes`).
fn watermark(frames: u64) -> u64 {
    let kib = frames << (PageSize::BASE_SHIFT - 10);
    (16 * kib).isqrt().clamp(128, 262_144) >> (PageSize::BASE_SHIFT - 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `min_free_kbytes` is 4 MiB for 1 GiB, 128 KiB at least and 256 MiB at most.
    #[test]
    fn a_kernel_keeps_as_much_from_drivers_as_linux_does() {
        let gib = 1 << 18;
        assert_eq!(watermark(gib), (4 << 20) / 4096);
        assert_eq!(watermark(16 * gib), (16 << 20) / 4096);
        assert_eq!(watermark(16), (128 << 10) / 4096);
        assert_eq!(watermark(1 << 30), (256 << 20) / 4096, "4 TiB");
        assert_eq!(watermark(1 << 36), (256 << 20) / 4096);
    }
}
