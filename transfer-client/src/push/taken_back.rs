//! The memory of a published version that becomes writable again.

use crate::error::Error;
use crate::memory::TensorMut;
use crate::session::{Lent, Loan, Session};
use std::convert::Infallible;
use std::fmt::Debug;
use std::task::Waker;
use transfer_core::op::Push;
use transfer_core::tensor::TensorMeta;
use transfer_core::wire::digests::TENSOR_MARK;
use transfer_core::wire::ranges::{RANGE_BYTES, read_ranges};

/// What a version that is taken back becomes: a tensor, the tensors of a bundle, or nothing.
pub trait TakenBack: Sized + 'static {
    /// How its memory can be taken back.
    type Plan: Debug + Send + Unpin;

    /// What is allocated if there is no version to take back, and as much of it as is allocated already.
    type Fresh: Debug + Send + Unpin;

    /// Finds the memory of a published version.
    ///
    /// # Errors
    /// The reason why it cannot become writable.
    fn plan(session: &Session, lent: Lent, push: &Push) -> Result<Self::Plan, Error>;

    /// Takes the memory of a version back that has no reader left.
    ///
    /// # Errors
    /// The memory is not writable. It is then free once its other holders are done.
    fn take_back(plan: Self::Plan, session: &Session, loan: Loan) -> Result<Self, Error>;

    /// Allocates it. `None` if there is no room for all of it now.
    ///
    /// # Errors
    /// Those of an allocation.
    fn allocate(
        fresh: &mut Self::Fresh,
        session: &Session,
        waker: &Waker,
        last_try: bool,
    ) -> Result<Option<Self>, Error>;
}

/// The plan for one version, which the sidecar knows by this offset.
#[derive(Debug)]
pub(super) struct Planned<P> {
    offset: u64,
    plan: P,
}

impl<P> Planned<P> {
    pub(super) fn new<T: TakenBack<Plan = P>>(session: &Session, lent: Lent, push: &Push) -> Result<Planned<P>, Error> {
        Ok(Planned { offset: lent.offset, plan: T::plan(session, lent, push)? })
    }
}

/// Makes the memory of a version that was taken back writable. `planned` is the plan of the version that was found before,
/// which may be another one.
///
/// # Errors
/// The reason why the memory is not writable. It is then free once its other holders are done.
pub(super) fn taken_back<T: TakenBack>(
    session: &Session,
    planned: Option<Planned<T::Plan>>,
    loan: Loan,
) -> Result<T, Error> {
    let plan = match planned {
        Some(planned) if planned.offset == loan.lent.offset => Ok(planned.plan),
        _ => T::plan(session, loan.lent, &loan.push),
    };
    let plan = plan.and_then(|plan| match session.home().is_read_no_more(&loan.formers) {
        true => Ok(plan),
        false => Err(Error::NotAlone { meta: loan.push.meta.clone() }),
    });
    match plan {
        Ok(plan) => {
            session.free_deltas(&loan);
            T::take_back(plan, session, loan.without_deltas())
        }
        Err(error) => {
            session.give_back(loan);
            Err(error)
        }
    }
}

/// Nothing: the memory stays with this process's other holders.
impl TakenBack for () {
    type Plan = ();
    type Fresh = Infallible;

    fn plan(_: &Session, _: Lent, _: &Push) -> Result<(), Error> {
        Ok(())
    }

    fn take_back((): (), session: &Session, loan: Loan) -> Result<(), Error> {
        session.give_back(loan);
        Ok(())
    }

    fn allocate(fresh: &mut Infallible, _: &Session, _: &Waker, _: bool) -> Result<Option<()>, Error> {
        match *fresh {}
    }
}

/// One tensor. The plan is its allocation, if it has digests in front of it.
impl TakenBack for TensorMut {
    type Plan = Option<u64>;
    type Fresh = TensorMeta;

    fn plan(session: &Session, lent: Lent, push: &Push) -> Result<Option<u64>, Error> {
        let not_alone = || Error::NotAlone { meta: push.meta.clone() };
        if push.meta.metadata_bytes() > 0 {
            return behind_digests(session, lent, push).map(Some).ok_or_else(not_alone);
        }
        let alone = session.arena().lent_at(lent.allocation).is_some_and(|(_, alone)| alone);
        if lent.owned && alone { Ok(None) } else { Err(not_alone()) }
    }

    fn take_back(plan: Option<u64>, session: &Session, loan: Loan) -> Result<TensorMut, Error> {
        let block = match plan {
            None => session.take_back(loan.lent),
            Some(allocation) => {
                let blocks = session.arena().take_back_all(&[allocation, loan.lent.allocation]);
                blocks.ok().and_then(|blocks| blocks.into_iter().next())
            }
        };
        let Some(block) = block else {
            let meta = loan.push.meta.clone();
            session.give_back(loan);
            return Err(Error::NotAlone { meta });
        };
        session.room_is_free();
        let meta = loan.push.meta;
        Ok(TensorMut::new(block, TensorMeta::of(meta.dtype(), meta.shape().dims())?))
    }

    fn allocate(
        meta: &mut TensorMeta,
        session: &Session,
        waker: &Waker,
        last_try: bool,
    ) -> Result<Option<TensorMut>, Error> {
        let block = session.allocate_or_wait(meta.len_bytes(), waker, last_try)?;
        Ok(block.map(|block| TensorMut::new(block, meta.clone())))
    }
}

/// The allocation of a tensor that was pushed with digests, if the sidecar alone holds it.
fn behind_digests(session: &Session, lent: Lent, push: &Push) -> Option<u64> {
    let (arena, meta) = (session.arena(), &push.meta);
    let mut mark = [0; TENSOR_MARK.len()];
    let mut table = [0; RANGE_BYTES];
    arena.copy_out(lent.offset, &mut mark).ok().filter(|()| mark == TENSOR_MARK && push.ranges == 1)?;
    arena.copy_out(lent.offset + meta.body_offset(), &mut table).ok()?;
    let range = read_ranges(&table).next()?;
    let (start, len, alone) = arena.lent_around(range.offset)?;
    (alone && start == range.offset && len == range.len).then_some(start)
}
