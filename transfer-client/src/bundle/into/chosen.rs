//! What of a bundle is asked for, what can land in place, and why not the rest.

use super::call::FetchBundleIntoCall;
use super::whole::check_fits;
use crate::bundle::parts::{Part, PartsRequest, Wanted, named_parts, parts};
use crate::digest::Proving;
use crate::error::Error;
use crate::fetch::FetchOptions;
use crate::landing::{Landing, LandingPlace, MIN_RUN_BYTES};
use std::collections::HashSet;
use transfer_core::op::{Failure, FailureCode};
use transfer_core::tensor::{Key, Select};
use transfer_core::wire::bundle::BundleTable;

impl FetchBundleIntoCall {
    /// Checks that each slice has a place, and each place a slice.
    pub(super) fn check_names(&self) -> Result<(), Error> {
        let Some(wanted) = self.whole.wanted() else { return Ok(()) };
        let named: HashSet<&str> = wanted.iter().map(|wanted| wanted.name.as_str()).collect();
        let without = self.places().iter().find(|place| !named.contains(place.name.as_str()));
        let placed: HashSet<&str> = self.places().iter().map(|place| place.name.as_str()).collect();
        let text = match (without, wanted.iter().find(|wanted| !placed.contains(wanted.name.as_str()))) {
            (Some(LandingPlace { name, .. }), _) => {
                format!("there is a tensor to fetch {name:?} into, and no slice of that is asked for")
            }
            (None, Some(Wanted { name, .. })) => {
                format!("a slice of {name:?} is asked for, and there is no tensor to fetch it into")
            }
            (None, None) => return Ok(()),
        };
        Err(Failure::new(FailureCode::Invalid, text).into())
    }

    /// The reason for which a place cannot be landed in, whatever the version is.
    pub(super) fn reason(&self, place: usize) -> Option<Landing> {
        let targets = self.targets.as_ref()?;
        let is_long = targets.places()[place].view.bytes().is_some_and(|bytes| bytes.run() >= MIN_RUN_BYTES);
        match () {
            () if !targets.is_own(place) => Some(Landing::OtherArena),
            () if !is_long => Some(Landing::Short),
            () => None,
        }
    }

    /// Whether there may be a run that is long enough to land in place. Short ones may be neighbours.
    fn may_land(&self) -> bool {
        let Some(targets) = &self.targets else { return false };
        let is_one_run = |(at, place): (usize, &LandingPlace)| {
            let bytes = place.view.bytes().filter(|bytes| targets.is_own(at) && bytes.repeats().is_empty());
            bytes.map(|bytes| bytes.len_bytes())
        };
        let sum: u64 = targets.places().iter().enumerate().filter_map(is_one_run).sum();
        sum >= MIN_RUN_BYTES || (0..targets.places().len()).any(|place| self.reason(place).is_none())
    }

    /// Returns the reason for which none of it can land in place, whatever the version is.
    pub(super) fn lands_as_a_whole(&self) -> Option<Option<Landing>> {
        let FetchOptions { select, proving, .. } = self.whole.options();
        match () {
            () if self.is_staged => Some(Some(Landing::Staged)),
            () if proving != Proving::Not => Some(Some(Landing::Verified)),
            () if self.session.home().is_returned() => Some(Some(Landing::ReturnedArena)),
            // Its fetches are counted, so a part of it cannot be asked for.
            () if matches!(select, Select::Following(_)) => Some(Some(Landing::Whole)),
            () if !self.may_land() => Some(None),
            () => None,
        }
    }

    /// What is wanted of a bundle with this table.
    pub(super) fn parts<'a>(&self, key: &Key, table: &'a BundleTable) -> Result<Vec<Part<'a>>, Error> {
        match self.whole.wanted() {
            Some(wanted) => parts(key, table, wanted),
            None => named_parts(table, self.places().iter().map(|place| place.name.as_str())),
        }
    }

    /// Checks that what each place is for is in the bundle, with its element type and shape.
    pub(super) fn check(&self, key: &Key, table: &BundleTable) -> Result<(), Error> {
        let parts = self.parts(key, table)?;
        for part in &parts {
            let name = part.entry.name.as_str();
            let place = self.targets.as_ref().and_then(|targets| Some(&targets.places()[targets.find(name)?]));
            if let Some(place) = place {
                check_fits(name, part.meta(), place.view.meta())?;
            }
        }
        Ok(())
    }

    /// The request for what is wanted of a version with this table. `None` if one cannot name all of it.
    pub(super) fn request(&self, key: &Key, table: &BundleTable) -> Result<Option<PartsRequest>, Error> {
        let (targets, parts) = (self.targets.as_ref(), self.parts(key, table)?);
        let place = |part: &Part<'_>| {
            let targets = targets?;
            let place = targets.find(part.entry.name.as_str())?;
            Some((place, targets.places()[place].view.bytes()?.clone()))
        };
        let placed: Vec<_> = parts.iter().map(|part| (part, place(part))).collect();
        match self.whole.wanted() {
            None => PartsRequest::of_whole(table, placed).map(Some),
            Some(_) => PartsRequest::of_parts(table, placed),
        }
    }

    /// As [`parts`](Self::parts), in the order of the table, and with the tensors without a place if they are wanted.
    pub(super) fn parts_with_rest<'a>(&self, key: &Key, table: &'a BundleTable) -> Result<Vec<Part<'a>>, Error> {
        let (Some(targets), None) = (&self.targets, self.whole.wanted()) else { return self.parts(key, table) };
        let entries = table.entries().iter();
        let wanted = entries.filter(|entry| self.keeps_rest || targets.find(entry.name.as_str()).is_some());
        Ok(wanted.map(|entry| Part { entry, found: None }).collect())
    }
}
